// Reads and writes safetensors files, the format in which models are published: a JSON header followed by
// tensors as raw bytes.
//
//   8 bytes   length of the header, little-endian
//   header    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {…}}
//   data      the tensors without gaps, row-major
//
// Files are memory-mapped and fully validated. Sizes are checked before memory is allocated, and the offsets
// must cover the data exactly once. Errors in a file throw UserError with the file and the tensor. This
// module is independent of models. Read next: checkpoint/hf_tensors.h.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"
#include "checkpoint/element.h"

namespace optimus {

// The header entry of one tensor. It has up to kMaxStoredDims dimensions. A tensor without dimensions is a
// single value.
struct TensorHeader {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape;
  bool operator==(const TensorHeader&) const = default;
  std::int64_t num_bytes() const;
};
inline constexpr std::size_t kMaxStoredDims = 64;

// A tensor in a file. The bytes are owned by the file and may be unaligned.
struct StoredTensor : TensorHeader {
  std::span<const std::byte> bytes;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsContent {
  std::vector<StoredTensor> tensors;  // in the order of their bytes
  SafetensorsMetadata metadata;
};

// `file` is the content of the whole file, and the result refers to it. `source` is the file name for error
// messages. Throws UserError if the file is invalid.
SafetensorsContent parse_safetensors(std::span<const std::byte> file, const std::string& source);

// A memory-mapped safetensors file. Thread-safe. Tensors are valid during the lifetime of this object.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const Path& path);  // throws ReportedError
  // Uses a file that is already mapped.
  static SafetensorsFile open(const Path& path, MappedFile file);

  const Path& path() const { return path_; }
  const SafetensorsMetadata& metadata() const { return content_.metadata; }
  const std::vector<StoredTensor>& tensors() const { return content_.tensors; }
  const StoredTensor* find(std::string_view name) const;  // nullptr if there is no such tensor

 private:
  Path path_;
  MappedFile file_;
  SafetensorsContent content_;
  std::unordered_map<std::string_view, std::size_t> tensor_index_;  // the names are owned by content_
};

// The weights in a Hugging Face folder, from model.safetensors or from the shards listed in
// model.safetensors.index.json.
class SafetensorsFolder {
 public:
  // Opens a folder or a single safetensors file. Throws ReportedError if a tensor is not in the shard that
  // the index assigns it to, or if it is also in another shard.
  static SafetensorsFolder open(const Path& path);

  struct Match {
    const StoredTensor* tensor;
    const SafetensorsFile* file;
    explicit operator bool() const { return tensor != nullptr; }
  };
  const Path& path() const { return path_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  Match find(std::string_view name) const;

 private:
  Path path_;
  std::vector<SafetensorsFile> files_;
};

inline constexpr std::string_view kWeightsFile = "model.safetensors";
inline constexpr std::string_view kWeightsIndex = "model.safetensors.index.json";

// The file that contains a tensor, according to the index. parse_safetensors_index() throws UserError unless
// all files are names of .safetensors files without a path.
struct SafetensorsIndexRow {
  std::string tensor, file;
};
std::vector<SafetensorsIndexRow> parse_safetensors_index(std::string_view text, const std::string& source);

// Writes one file. create() writes the header. write() then writes the bytes of the tensors in the order of
// the headers, in blocks of any size. commit() gives the file its name. The data starts at a multiple of 8
// bytes. A tensor is aligned if the sizes of all tensors before it are multiples of its alignment, for
// example if wider types come first. Not thread-safe.
class SafetensorsWriter {
 public:
  // Names must be unique and valid UTF-8.
  static Outcome<SafetensorsWriter> create(FileSystem& files, const Path& path,
                                           std::span<const TensorHeader> tensors,
                                           const SafetensorsMetadata& metadata = {});
  Outcome<void> write(std::span<const std::byte> bytes);
  // All bytes that are declared in the headers must have been written.
  Outcome<void> commit();
  std::int64_t size() const { return file_.size(); }  // bytes written so far, with the header

 private:
  SafetensorsWriter(AtomicFile file, std::int64_t remaining_bytes)
      : file_(std::move(file)), remaining_bytes_(remaining_bytes) {}
  AtomicFile file_;
  std::int64_t remaining_bytes_;
};

std::string shape_text(std::span<const std::int64_t> shape);  // "[4096, 1024]"

}  // namespace optimus
