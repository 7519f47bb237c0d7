// File checksums (64-bit XXH3). They detect damage such as flipped bits, truncated files and swapped shards,
// but not malicious changes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace optimus {

struct Checksum {
  std::uint64_t value = 0;
  bool operator==(const Checksum&) const = default;
};
std::string text(Checksum sum);  // 16 hexadecimal digits

Checksum checksum(std::span<const std::byte> bytes);
inline Checksum checksum(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

// Computes the checksum of a stream of bytes incrementally.
class RunningChecksum {
 public:
  RunningChecksum();
  RunningChecksum(RunningChecksum&&) noexcept;
  RunningChecksum& operator=(RunningChecksum&&) noexcept;
  ~RunningChecksum();
  void add(std::span<const std::byte> bytes);
  Checksum value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A file system that computes the checksum of a file while it is written, when its bytes are still in the CPU
// cache. Only one file can be written at a time. `files` must outlive this object.
class ChecksummingFileSystem final : public FileSystem {
 public:
  explicit ChecksummingFileSystem(FileSystem& files) : files_(files) {}
  // The checksum of all bytes written since the last create().
  Checksum sum() const { return sum_.value(); }

  Outcome<std::unique_ptr<WritableFile>> create(const Path& path) override;
  Outcome<void> rename(const Path& from, const Path& to) override { return files_.rename(from, to); }
  Outcome<void> remove(const Path& path) override { return files_.remove(path); }
  Outcome<void> create_folders(const Path& path) override { return files_.create_folders(path); }
  Outcome<void> sync_folder(const Path& path) override { return files_.sync_folder(path); }

 private:
  FileSystem& files_;
  RunningChecksum sum_;
};

}  // namespace optimus
