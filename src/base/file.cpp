// Implements file.h with POSIX calls. Each failure contains the path and the system's error text.
#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace optimus {
namespace {

std::string last_error_text() { return std::strerror(errno); }

// Owns a file descriptor.
struct Descriptor {
  int fd = -1;
  explicit Descriptor(int descriptor) : fd(descriptor) {}
  Descriptor(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

class PosixWritableFile final : public WritableFile {
 public:
  PosixWritableFile(int fd, Path path) : file_(fd), path_(std::move(path)) {}

  Outcome<void> write(std::span<const std::byte> bytes) override {
    while (!bytes.empty()) {
      const ssize_t num_written = ::write(file_.fd, bytes.data(), bytes.size());
      if (num_written < 0 && errno == EINTR) continue;
      if (num_written < 0) return failure("cannot write {}: {}", path_.string(), last_error_text());
      bytes = bytes.subspan(static_cast<std::size_t>(num_written));
      size_ += num_written;
    }
    start_write_back();
    return {};
  }

  Outcome<void> sync() override {
    if (::fsync(file_.fd) != 0) return failure("cannot write {}: {}", path_.string(), last_error_text());
    return {};
  }

 private:
  // Starts writing the pages to the disk while the caller produces more data, so that sync() waits for less.
  // This is only a hint: sync() reports disk failures.
  void start_write_back() {
    constexpr off_t kWriteBackBytes = 16 << 20;
    if (size_ - write_back_begin_ < kWriteBackBytes) return;
    (void)::sync_file_range(file_.fd, write_back_begin_, size_ - write_back_begin_, SYNC_FILE_RANGE_WRITE);
    write_back_begin_ = size_;
  }

  Descriptor file_;
  Path path_;
  // The number of bytes written, and the number of bytes whose write-back has started.
  off_t size_ = 0, write_back_begin_ = 0;
};

Path folder_of(const Path& path) { return path.has_parent_path() ? path.parent_path() : Path("."); }

}  // namespace

Outcome<std::unique_ptr<WritableFile>> RealFileSystem::create(const Path& path) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return failure("cannot create {}: {}", path.string(), last_error_text());
  return std::make_unique<PosixWritableFile>(fd, path);
}

Outcome<void> RealFileSystem::rename(const Path& from, const Path& to) {
  if (::rename(from.c_str(), to.c_str()) != 0)
    return failure("cannot write {}: {}", to.string(), last_error_text());
  return {};
}

Outcome<void> RealFileSystem::remove(const Path& path) {
  if (::remove(path.c_str()) != 0 && errno != ENOENT)
    return failure("cannot remove {}: {}", path.string(), last_error_text());
  return {};
}

Outcome<void> RealFileSystem::create_folders(const Path& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return failure("cannot create folder {}: {}", path.string(), error.message());
  return {};
}

Outcome<void> RealFileSystem::sync_folder(const Path& path) {
  // The rename has already happened, so it is not an error if the folder cannot be opened for reading or the
  // file system cannot sync folders.
  const Descriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.fd < 0 && errno == EACCES) return {};
  if (folder.fd >= 0 && (::fsync(folder.fd) == 0 || errno == EINVAL || errno == EROFS)) return {};
  return failure("cannot write folder {}: {}", path.string(), last_error_text());
}

Outcome<AtomicFile> AtomicFile::create(FileSystem& files, const Path& path) {
  // The counter keeps names unique when several threads of one process write files of the same name.
  static std::atomic<unsigned> counter{0};
  Path temporary = path;
  temporary += fmt::format(".tmp-{}-{}", ::getpid(), counter.fetch_add(1));
  Outcome<std::unique_ptr<WritableFile>> file = files.create(temporary);
  if (!file) return tl::unexpected(file.error());
  return AtomicFile(files, path, std::move(temporary), std::move(*file));
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : files_(other.files_),
      path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      file_(std::move(other.file_)),
      pending_(std::move(other.pending_)),
      size_(other.size_) {}

AtomicFile::~AtomicFile() {
  if (temporary_.empty()) return;
  file_.reset();
  // The destructor cannot report a failure. A file that is left behind has a temporary name.
  (void)files_->remove(temporary_);
}

Outcome<void> AtomicFile::write(std::span<const std::byte> bytes) {
  constexpr std::size_t kBlock = 1 << 20;
  size_ += static_cast<std::int64_t>(bytes.size());
  if (bytes.size() >= kBlock) {
    if (Outcome<void> result = flush(); !result) return result;
    return file_->write(bytes);
  }
  pending_.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return pending_.size() >= kBlock ? flush() : Outcome<void>{};
}

Outcome<void> AtomicFile::flush() {
  Outcome<void> result = file_->write(std::as_bytes(std::span(pending_)));
  pending_.clear();
  return result;
}

Outcome<void> AtomicFile::commit() {
  const Outcome<std::unique_ptr<WritableFile>> file = commit_and_continue();
  if (!file) return tl::unexpected(file.error());
  return {};
}

Outcome<std::unique_ptr<WritableFile>> AtomicFile::commit_and_continue() {
  if (Outcome<void> result = flush(); !result) return tl::unexpected(result.error());
  if (Outcome<void> result = file_->sync(); !result) return tl::unexpected(result.error());
  if (Outcome<void> result = files_->rename(temporary_, path_); !result)
    return tl::unexpected(result.error());
  temporary_.clear();
  if (Outcome<void> result = files_->sync_folder(folder_of(path_)); !result)
    return tl::unexpected(result.error());
  return std::move(file_);
}

Outcome<void> write_atomically(FileSystem& files, const Path& path, std::string_view text) {
  Outcome<AtomicFile> file = AtomicFile::create(files, path);
  if (!file) return tl::unexpected(file.error());
  if (Outcome<void> result = file->write(text); !result) return result;
  return file->commit();
}

void remove_temporaries(FileSystem& files, const Path& path) {
  const std::string begin = path.filename().string() + ".tmp-";
  std::error_code error;
  for (std::filesystem::directory_iterator at(path.parent_path(), error), end; !error && at != end;
       at.increment(error))
    if (at->path().filename().string().compare(0, begin.size(), begin) == 0) (void)files.remove(at->path());
}

namespace {

// Returns the size of a regular file. Fails for a folder or a device.
Outcome<std::size_t> regular_size(const Descriptor& file, const Path& path) {
  if (file.fd < 0) return failure("cannot open {}: {}", path.string(), last_error_text());
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return failure("cannot open {}: {}", path.string(), last_error_text());
  if (S_ISDIR(info.st_mode)) return failure("cannot open {}: expected a file, got a folder", path.string());
  if (!S_ISREG(info.st_mode)) return failure("cannot open {}: not a regular file", path.string());
  return static_cast<std::size_t>(info.st_size);
}

}  // namespace

Outcome<std::string> read_file(const Path& path, Bytes limit) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const Outcome<std::size_t> size = regular_size(file, path);
  if (!size) return tl::unexpected(size.error());
  if (static_cast<std::int64_t>(*size) > limit.value)
    return failure("{} is too large to read: {} (limit {})", path.string(),
                   text(Bytes(static_cast<std::int64_t>(*size))), text(limit));
  std::string content(*size, '\0');
  std::size_t num_done = 0;
  while (num_done < content.size()) {
    const ssize_t num_read = ::read(file.fd, content.data() + num_done, content.size() - num_done);
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read < 0) return failure("cannot read {}: {}", path.string(), last_error_text());
    if (num_read == 0) break;
    num_done += static_cast<std::size_t>(num_read);
  }
  content.resize(num_done);
  return content;
}

std::string read_input_file(const Path& path, Bytes limit) {
  Outcome<std::string> content = read_file(path, limit);
  if (content) return std::move(*content);
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  const bool is_not_regular =
      std::filesystem::status_known(status) && !std::filesystem::is_regular_file(status);
  const bool is_too_large =
      std::filesystem::is_regular_file(status) &&
      std::filesystem::file_size(path, error) > static_cast<std::uintmax_t>(limit.value);
  if (is_not_regular || (is_too_large && !error)) throw UserError("{}", content.error().why);
  throw RuntimeFailure("{}", content.error().why);
}

Outcome<MappedFile> MappedFile::open(const Path& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const Outcome<std::size_t> size = regular_size(file, path);
  if (!size) return tl::unexpected(size.error());
  MappedFile result;
  if (*size == 0) return result;  // mmap rejects empty files
  void* const data = ::mmap(nullptr, *size, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (data == MAP_FAILED) return failure("cannot map {}: {}", path.string(), last_error_text());
  result.data_ = static_cast<const std::byte*>(data);
  result.size_ = *size;
  return result;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace optimus
