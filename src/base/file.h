// Files: whole reads, memory maps, and writes that either happen completely or not at all.
//
// Writing goes through the FileSystem interface, so that tests can hand in a twin that fails at a chosen call
// (tests/base/failing_file_system.h). Every function that touches the disk returns an Outcome; its failure
// text names the file and the reason in one line.
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

// Append-only; closed by the destructor, which cannot report: call sync() to know that the bytes are safe.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  virtual Outcome<void> write(std::span<const std::byte> bytes) = 0;
  virtual Outcome<void> sync() = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;
  // Fails if the file exists already.
  virtual Outcome<std::unique_ptr<WritableFile>> create(const Path& path) = 0;
  virtual Outcome<void> rename(const Path& from, const Path& to) = 0;
  // A file or an empty folder. Removing what is not there is no failure.
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

// A file that appears under its name only at commit(). Until then the bytes are in "NAME.tmp-PID-N" beside
// it; without commit() the destructor removes that. Writes are gathered into large blocks. One thread at a
// time.
class AtomicFile {
 public:
  static Outcome<AtomicFile> create(FileSystem& files, const Path& path);
  AtomicFile(AtomicFile&&) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();

  Outcome<void> write(std::span<const std::byte> bytes);
  Outcome<void> write(std::string_view text) { return write(std::as_bytes(std::span(text))); }
  Outcome<void> commit();
  // As commit(), but the file stays open for more, which appears as it is written.
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
// Whoever is about to replace `path` in that way fails from here on.
void remove_temporaries(FileSystem& files, const Path& path);

// The whole file. Fails rather than taking more than `limit` of memory.
Outcome<std::string> read_file(const Path& path, Bytes limit = Bytes(std::int64_t{1} << 32));

// A file seen as memory, read only. The bytes live as long as this object.
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
