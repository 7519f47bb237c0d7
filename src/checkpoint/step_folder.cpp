// See step_folder.h.
#include "checkpoint/step_folder.h"

#include <charconv>
#include <random>

#include "base/text.h"

namespace optimus {
namespace {
constexpr std::string_view kPrefix = "step-", kTemporary = ".tmp-";
}

Path StepFolder::final_path() const { return path.parent_path() / fmt::format("{}{}", kPrefix, step); }

std::optional<StepFolder> parse_step_folder(const Path& path) {
  const std::string name = path.filename().string();
  if (!starts_with(name, kPrefix)) return std::nullopt;
  StepFolder folder{0, false, path};
  const char* const begin = name.data() + kPrefix.size();
  const char* const end = name.data() + name.size();
  const auto [rest, error] = std::from_chars(begin, end, folder.step);
  // Only the canonical form is accepted: step-007 is not a checkpoint.
  if (error != std::errc() || folder.step < 0 ||
      fmt::format("{}", folder.step) != std::string_view(begin, rest))
    return std::nullopt;
  folder.is_temporary = starts_with({rest, end}, kTemporary);
  if (rest != end && !folder.is_temporary) return std::nullopt;
  return folder;
}

StepFolder temporary_step_folder(const Path& parent, std::int64_t step) {
  std::random_device device;
  const std::uint64_t id = std::uint64_t{device()} << 32 | device();
  return {step, true, parent / fmt::format("{}{}{}{:016x}", kPrefix, step, kTemporary, id)};
}

}  // namespace optimus
