// Implements plan_files.h.
#include "rundir/plan_files.h"

#include <charconv>

#include "base/error.h"
#include "plan/plan_json.h"

namespace optimus {

Path plan_path(const Path& run, std::int64_t epoch) { return run / "plans" / fmt::format("{}.json", epoch); }

void save_plan(FileSystem& files, const Path& run, const Plan& plan, std::int64_t epoch) {
  value_or_throw(files.create_folders(run / "plans"));
  const std::string text = plan_text(plan);
  value_or_throw(write_atomically(files, plan_path(run, epoch), text));
  value_or_throw(write_atomically(files, run / "plan.json", text));
}

std::optional<std::int64_t> newest_epoch(const Path& run) {
  std::optional<std::int64_t> newest;
  std::error_code error;
  for (std::filesystem::directory_iterator it(run / "plans", error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().stem().string();
    std::int64_t epoch = 0;
    const auto [number_end, problem] = std::from_chars(name.data(), name.data() + name.size(), epoch);
    if (problem != std::errc() || number_end != name.data() + name.size() ||
        it->path().extension() != ".json")
      continue;
    newest = std::max(newest.value_or(0), epoch);
  }
  return newest;
}

}  // namespace optimus
