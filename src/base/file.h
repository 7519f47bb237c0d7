// File access: whole-file reads, memory maps and atomic writes.
//
// Writes go through the FileSystem interface, so that tests can substitute an implementation that fails at a
// chosen call (tests/base/failing_file_system.h). Every function that accesses the disk returns an Outcome;
// its failure text names the file and the reason in one line.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/units.h"

namespace optimus {

using Path = std::filesystem::path;

// An append-only file. The destructor closes the file but cannot report errors: call sync() to make sure that
// the bytes are on the disk.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Outcome<void> write(std::span<const std::byte> bytes) = 0;
  virtual Outcome<void> sync() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Creates a file for writing. Fails if the file already exists.
  virtual Outcome<std::unique_ptr<WritableFile>> create(const Path& path) = 0;
  virtual Outcome<void> rename(const Path& from, const Path& to) = 0;
  // Removes a file or an empty folder. Succeeds if the path does not exist.
  virtual Outcome<void> remove(const Path& path) = 0;
  virtual Outcome<void> create_folders(const Path& path) = 0;
  // Makes renames inside the folder durable.
  virtual Outcome<void> sync_folder(const Path& path) = 0;
};

class RealFileSystem final : public FileSystem {
 public:
  Outcome<std::unique_ptr<WritableFile>> create(const Path& path) override;
  Outcome<void> rename(const Path& from, const Path& to) override;
  Outcome<void> remove(const Path& path) override;
  Outcome<void> create_folders(const Path& path) override;
  Outcome<void> sync_folder(const Path& path) override;
};

// A file that appears under its final name only at commit(). Until then the bytes are in "NAME.tmp-PID-N" in
// the same folder, and the destructor removes that file if commit() was not called. Writes are buffered in
// large blocks. Not thread-safe.
class AtomicFile {
 public:
  static Outcome<AtomicFile> create(FileSystem& files, const Path& path);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Outcome<void> write(std::span<const std::byte> bytes);
  Outcome<void> write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  Outcome<void> commit();
  // Like commit(), but returns the open file. Data written to it afterwards is visible immediately.
  Outcome<std::unique_ptr<WritableFile>> commit_and_continue();
  std::int64_t size() const { return size_; }

 private:
  AtomicFile(FileSystem& files, Path path, Path temporary, std::unique_ptr<WritableFile> file)
      : files_(&files), path_(std::move(path)), temporary_(std::move(temporary)), file_(std::move(file)) {}
  Outcome<void> flush();

  FileSystem* files_;
  Path path_, temporary_;
  std::unique_ptr<WritableFile> file_;
  std::string pending_;
  std::int64_t size_ = 0;
};

Outcome<void> write_atomically(FileSystem& files, const Path& path, std::string_view text);
// Removes the temporary files of unfinished atomic writes to `path`. An AtomicFile that is still open for
// `path` fails afterwards.
void remove_temporaries(FileSystem& files, const Path& path);

// Reads the whole file. Fails if the file is larger than `limit`.
Outcome<std::string> read_file(const Path& path, Bytes limit = Bytes(std::int64_t{1} << 32));

// Reads a file that the user has named. Throws a UserError if it is too large or not a regular file, and a
// RuntimeFailure if it cannot be read.
std::string read_input_file(const Path& path, Bytes limit = Bytes(std::int64_t{1} << 32));

// A read-only memory map of a file. The bytes are valid while this object exists.
class MappedFile {
 public:
  static Outcome<MappedFile> open(const Path& path);
  MappedFile() = default;
  MappedFile(MappedFile&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  MappedFile& operator=(MappedFile&& other) noexcept {
    std::swap(data_, other.data_), std::swap(size_, other.size_);
    return *this;
  }
  ~MappedFile();
  std::span<const std::byte> bytes() const { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace optimus
