// See checksum.h.
#include "checkpoint/checksum.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace optimus {

std::string text(Checksum sum) { return fmt::format("{:016x}", sum.value); }

Checksum checksum(std::span<const std::byte> bytes) { return {XXH3_64bits(bytes.data(), bytes.size())}; }

struct RunningChecksum::State {
  XXH3_state_t sum;
};

RunningChecksum::RunningChecksum() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->sum); }
RunningChecksum::RunningChecksum(RunningChecksum&&) noexcept = default;
RunningChecksum& RunningChecksum::operator=(RunningChecksum&&) noexcept = default;
RunningChecksum::~RunningChecksum() = default;

void RunningChecksum::add(std::span<const std::byte> bytes) {
  XXH3_64bits_update(&state_->sum, bytes.data(), bytes.size());
}

Checksum RunningChecksum::value() const { return {XXH3_64bits_digest(&state_->sum)}; }

namespace {

class ChecksummingFile final : public WritableFile {
 public:
  ChecksummingFile(std::unique_ptr<WritableFile> file, RunningChecksum& sum)
      : file_(std::move(file)), sum_(sum) {}

  Outcome<void> write(std::span<const std::byte> bytes) override {
    // Slices are small enough to stay in the cache between the checksum and the write.
    constexpr std::size_t kSlice = 1 << 18;
    while (!bytes.empty()) {
      const auto slice = bytes.first(std::min(bytes.size(), kSlice));
      sum_.add(slice);
      if (Outcome<void> outcome = file_->write(slice); !outcome) return outcome;
      bytes = bytes.subspan(slice.size());
    }
    return {};
  }
  Outcome<void> sync() override { return file_->sync(); }

 private:
  std::unique_ptr<WritableFile> file_;
  RunningChecksum& sum_;
};

}  // namespace

Outcome<std::unique_ptr<WritableFile>> ChecksummingFileSystem::create(const Path& path) {
  Outcome<std::unique_ptr<WritableFile>> file = files_.create(path);
  if (!file) return file;
  sum_ = RunningChecksum();
  return std::make_unique<ChecksummingFile>(std::move(*file), sum_);
}

}  // namespace optimus
