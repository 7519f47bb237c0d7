// The real file system without fsync, for tests that write thousands of files and for measuring the cost of
// syncing.
#pragma once

#include "base/file.h"

namespace optimus {

class UnsyncedFileSystem final : public FileSystem {
 public:
  Outcome<std::unique_ptr<WritableFile>> create(const Path& path) override {
    auto file = real_.create(path);
    if (!file) return file;
    return std::make_unique<File>(std::move(*file));
  }
  Outcome<void> rename(const Path& from, const Path& to) override { return real_.rename(from, to); }
  Outcome<void> remove(const Path& path) override { return real_.remove(path); }
  Outcome<void> create_folders(const Path& path) override { return real_.create_folders(path); }
  Outcome<void> sync_folder(const Path&) override { return {}; }

 private:
  class File final : public WritableFile {
   public:
    explicit File(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
    Outcome<void> write(std::span<const std::byte> bytes) override { return file_->write(bytes); }
    Outcome<void> sync() override { return {}; }

   private:
    std::unique_ptr<WritableFile> file_;
  };
  RealFileSystem real_;
};

}  // namespace optimus
