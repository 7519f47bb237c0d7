// Implements SafetensorsWriter of safetensors.h.
#include <cstring>
#include <set>

#include "base/json.h"
#include "checkpoint/safetensors.h"

namespace optimus {
namespace {

// The header as JSON, padded with spaces so that the data starts at a multiple of 8 bytes.
std::string header_text(std::span<const TensorHeader> tensors, const SafetensorsMetadata& metadata) {
  std::set<std::string_view> names;
  OrderedJson header = OrderedJson::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  // Members are appended to the underlying vector, because each lookup in an ordered object is linear, so the
  // total time would be quadratic.
  auto& members = header.get_ref<OrderedJson::object_t&>();
  std::int64_t offset = 0;
  for (const TensorHeader& tensor : tensors) {
    ensure(names.insert(tensor.name).second && tensor.name != "__metadata__", "tensor {} appears twice",
           tensor.name);
    const std::int64_t end = offset + tensor.num_bytes();
    OrderedJson entry;
    entry["dtype"] = text(tensor.type);
    entry["shape"] = tensor.shape;
    entry["data_offsets"] = {offset, end};
    static_cast<std::vector<OrderedJson::object_t::value_type>&>(members).emplace_back(tensor.name,
                                                                                       std::move(entry));
    offset = end;
  }
  std::string result = header.dump();
  result.resize((result.size() + 7) / 8 * 8, ' ');
  return result;
}

}  // namespace

Outcome<SafetensorsWriter> SafetensorsWriter::create(FileSystem& files, const Path& path,
                                                     std::span<const TensorHeader> tensors,
                                                     const SafetensorsMetadata& metadata) {
  const std::string header = header_text(tensors, metadata);
  std::int64_t total = 0;
  for (const TensorHeader& tensor : tensors) total += tensor.num_bytes();
  Outcome<AtomicFile> file = AtomicFile::create(files, path);
  if (!file) return tl::unexpected(file.error());
  const auto length = static_cast<std::uint64_t>(header.size());
  if (Outcome<void> outcome = file->write(std::as_bytes(std::span(&length, 1))); !outcome)
    return tl::unexpected(outcome.error());
  if (Outcome<void> outcome = file->write(header); !outcome) return tl::unexpected(outcome.error());
  return SafetensorsWriter(std::move(*file), total);
}

Outcome<void> SafetensorsWriter::write(std::span<const std::byte> bytes) {
  remaining_bytes_ -= static_cast<std::int64_t>(bytes.size());
  ensure(remaining_bytes_ >= 0, "{} bytes more than declared in the header", -remaining_bytes_);
  return file_.write(bytes);
}

Outcome<void> SafetensorsWriter::commit() {
  ensure(remaining_bytes_ == 0, "{} bytes declared in the header were not written", remaining_bytes_);
  return file_.commit();
}

}  // namespace optimus
