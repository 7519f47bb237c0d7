// A file system for fault injection: it forwards to the real file system until its budget of successful calls
// is used up; afterwards every call fails as on a full disk. Removing files still works, as it does on a full
// disk.
#pragma once

#include "base/unsynced_file_system.h"

namespace optimus {

class FailingFileSystem final : public FileSystem {
 public:
  explicit FailingFileSystem(int calls_until_failure) : remaining_calls_(calls_until_failure) {}

  Outcome<std::unique_ptr<WritableFile>> create(const Path& path) override {
    if (consume_call()) return failure("cannot create {}: No space left on device", path.string());
    auto file = real_.create(path);
    if (!file) return file;
    return std::make_unique<File>(std::move(*file), *this, path);
  }
  Outcome<void> rename(const Path& from, const Path& to) override {
    if (consume_call()) return failure("cannot write {}: No space left on device", to.string());
    return real_.rename(from, to);
  }
  Outcome<void> remove(const Path& path) override { return real_.remove(path); }
  Outcome<void> create_folders(const Path& path) override { return real_.create_folders(path); }
  Outcome<void> sync_folder(const Path& path) override {
    if (consume_call()) return failure("cannot write folder {}: No space left on device", path.string());
    return real_.sync_folder(path);
  }
  bool has_failed() const { return remaining_calls_ < 0; }

 private:
  class File final : public WritableFile {
   public:
    File(std::unique_ptr<WritableFile> real, FailingFileSystem& owner, Path path)
        : real_(std::move(real)), owner_(&owner), path_(std::move(path)) {}
    Outcome<void> write(std::span<const std::byte> bytes) override {
      if (owner_->consume_call()) return failure("cannot write {}: No space left on device", path_.string());
      return real_->write(bytes);
    }
    Outcome<void> sync() override {
      if (owner_->consume_call()) return failure("cannot write {}: No space left on device", path_.string());
      return real_->sync();
    }

   private:
    std::unique_ptr<WritableFile> real_;
    FailingFileSystem* owner_;
    Path path_;
  };

  bool consume_call() { return --remaining_calls_ < 0; }

  UnsyncedFileSystem real_;
  int remaining_calls_;
};

}  // namespace optimus
