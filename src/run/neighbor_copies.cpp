// Packs, sends and unpacks the files of in-memory checkpoints.
#include "run/neighbor_copies.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <charconv>

#include "base/text.h"

namespace optimus {
namespace {

// Differs from the tags of steps (engine/crossing.cpp, engine/layer_ring_attention.cpp).
constexpr int kCopyTag = 24;
constexpr std::int64_t kMaxCopiedBytes = std::int64_t{1} << 38;
constexpr std::int64_t kLargestCopyMessage = std::int64_t{1} << 28;
constexpr const char* kCopyDescription = "a neighbor's state in memory";

std::string file_prefix(int writer) { return fmt::format("rank-{:05}", writer); }

// Packs each file as a line "NAME SIZE" followed by the file's bytes. The list of a rank's shards comes last,
// because the receiver must write it last.
Outcome<std::string> pack(const Path& folder, int writer) {
  std::vector<Path> paths;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (starts_with(at->path().filename().string(), file_prefix(writer))) paths.push_back(at->path());
  if (error) return failure("{}: {}", folder.string(), error.message());
  std::sort(paths.begin(), paths.end(), [](const Path& a, const Path& b) {
    return std::pair(a.extension() == ".json", a) < std::pair(b.extension() == ".json", b);
  });
  std::string result;
  for (const Path& path : paths) {
    const Outcome<std::string> content = read_file(path, Bytes(kMaxCopiedBytes));
    if (!content) return tl::unexpected(content.error());
    result += fmt::format("{} {}\n", path.filename().string(), content->size());
    result += *content;
  }
  return result;
}

Outcome<void> unpack(FileSystem& files, const Path& folder, int writer, std::string_view packed) {
  if (packed.empty()) return failure("writer {} has not stored its part", writer);
  if (Outcome<void> folder_outcome = files.create_folders(folder); !folder_outcome) return folder_outcome;
  while (!packed.empty()) {
    const std::size_t end = packed.find('\n'), space = packed.find(' ');
    std::size_t size = 0;
    if (end == std::string_view::npos || space >= end)
      return failure("writer {} sent a malformed file list", writer);
    const std::string name(packed.substr(0, space));
    const auto [at, error] = std::from_chars(packed.data() + space + 1, packed.data() + end, size);
    if (error != std::errc() || at != packed.data() + end || size > packed.size() - end - 1 ||
        !starts_with(name, file_prefix(writer)) || name.find('/') != std::string::npos)
      return failure("writer {} sent a malformed file", writer);
    if (Outcome<void> write_outcome = write_atomically(files, folder / name, packed.substr(end + 1, size));
        !write_outcome)
      return write_outcome;
    packed.remove_prefix(end + 1 + size);
  }
  return {};
}

// Sends the size, then the bytes, split into messages that all transports accept. `bytes` must outlive the
// returned operations.
std::vector<std::unique_ptr<Pending>> send_bytes(Comm& comm, int to, std::string& bytes) {
  std::vector<std::unique_ptr<Pending>> result;
  const std::int64_t size = std::ssize(bytes);
  result.push_back(comm.send(to, at::full({1}, size, at::kLong), kCopyTag, kCopyDescription));
  for (std::int64_t at = 0; at < size; at += kLargestCopyMessage)
    result.push_back(
        comm.send(to, at::from_blob(bytes.data() + at, {std::min(kLargestCopyMessage, size - at)}, at::kByte),
                  kCopyTag, kCopyDescription));
  return result;
}

std::string receive_bytes(Comm& comm, int from, Seconds timeout) {
  const auto take = [&](at::Tensor tensor) {
    throw_if_failed(comm.receive(from, tensor, kCopyTag, kCopyDescription)
                        ->wait(Deadline::after(timeout, kCopyDescription)));
  };
  at::Tensor count = at::empty({1}, at::kLong);
  take(count);
  const std::int64_t size = *count.const_data_ptr<std::int64_t>();
  ensure(size >= 0 && size <= kMaxCopiedBytes, "rank {} announced {} bytes of state", from, size);
  std::string bytes(static_cast<std::size_t>(size), '\0');
  for (std::int64_t at = 0; at < size; at += kLargestCopyMessage)
    take(at::from_blob(bytes.data() + at, {std::min(kLargestCopyMessage, size - at)}, at::kByte));
  return bytes;
}

}  // namespace

Outcome<void> exchange_copies(Comm& comm, const CopiedStep& step, FileSystem& files, Seconds timeout) {
  const HostMemory& memory = step.memory;
  const std::optional<int> copy_holder = memory.copy_holder_of(step.writer);
  Outcome<void> result;
  Outcome<std::string> own = copy_holder && step.has_part ? pack(step.folder, step.writer) : std::string();
  if (!own) result = tl::unexpected(own.error()), own = std::string();
  std::vector<std::unique_ptr<Pending>> sends;
  if (copy_holder) sends = send_bytes(comm, memory.rank_of(*copy_holder), *own);
  for (const int other : memory.copied_by(step.writer)) {
    const std::string packed = receive_bytes(comm, memory.rank_of(other), timeout);
    if (const Outcome<void> write_outcome = unpack(files, step.folder, other, packed); !write_outcome)
      result = write_outcome;
  }
  for (const std::unique_ptr<Pending>& send : sends)
    throw_if_failed(send->wait(Deadline::after(timeout, kCopyDescription)));
  return result;
}

}  // namespace optimus
