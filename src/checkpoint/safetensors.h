// safetensors files: tensors as plain bytes behind a JSON header, the format in which models are published.
//
//   8 bytes   length of the header, little-endian
//   header    {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, …, "__metadata__": {…}}
//   data      the tensors back to back, row-major
//
// Reading maps the file and trusts nothing: sizes are checked before memory is taken, and offsets must cover
// the data exactly once. Errors in a file are UserErrors that name file and tensor. Nothing here knows models;
// read next: checkpoint/hf_tensors.h.
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

// What a header says of one tensor. Any number of dimensions up to kMaxStoredDims; none is a single value.
struct TensorHeader {
  std::string name;
  ElementType type = ElementType::f32;
  std::vector<std::int64_t> shape;
  bool operator==(const TensorHeader&) const = default;
  std::int64_t num_bytes() const;
};
inline constexpr std::size_t kMaxStoredDims = 64;

// A tensor inside a file. The bytes belong to the file and may stand at any address.
struct StoredTensor : TensorHeader {
  std::span<const std::byte> bytes;
};

using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsContent {
  std::vector<StoredTensor> tensors;  // in the order of their bytes
  SafetensorsMetadata metadata;
};

// `file` is the whole file; the result points into it. `source` is its name, for messages. Throws UserError.
SafetensorsContent parse_safetensors(std::span<const std::byte> file, const std::string& source);

// One file, mapped. Safe to read from many threads; tensors live as long as this object.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const Path& path);  // throws UserError
  // The same of a file that is mapped already.
  static SafetensorsFile open(const Path& path, MappedFile file);

  const Path& path() const { return path_; }
  const SafetensorsMetadata& metadata() const { return content_.metadata; }
  const std::vector<StoredTensor>& tensors() const { return content_.tensors; }
  const StoredTensor* find(std::string_view name) const;  // nullptr when there is none

 private:
  Path path_;
  MappedFile file_;
  SafetensorsContent content_;
  std::unordered_map<std::string_view, std::size_t> places_;  // names are content_'s
};

// The weights of a Hugging Face folder: model.safetensors, or else the shards that
// model.safetensors.index.json names.
class SafetensorsFolder {
 public:
  // A folder, or one safetensors file. Throws UserError; a tensor must stand where the index says and in no
  // second shard.
  static SafetensorsFolder open(const Path& path);

  struct Found {
    const StoredTensor* tensor;
    const SafetensorsFile* file;
    explicit operator bool() const { return tensor != nullptr; }
  };
  const Path& path() const { return path_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  Found find(std::string_view name) const;

 private:
  Path path_;
  std::vector<SafetensorsFile> files_;
};

inline constexpr std::string_view kWeightsFile = "model.safetensors";
inline constexpr std::string_view kWeightsIndex = "model.safetensors.index.json";

// Which file holds which tensor, as an index says. Throws UserError unless the files are plain names of .safetensors files.
struct SafetensorsIndexRow {
  std::string tensor, file;
};
std::vector<SafetensorsIndexRow> parse_safetensors_index(std::string_view text, const std::string& source);

// Writes one file: the header at once, then the bytes of the tensors in the given order, in pieces of any
// size. The file appears at commit(). Data starts at a multiple of 8; a tensor is aligned when those before it
// have sizes that keep it so (wide types first does). One thread at a time.
class SafetensorsWriter {
 public:
  // Names must be different and valid UTF-8.
  static Outcome<SafetensorsWriter> create(FileSystem& files, const Path& path,
                                           std::span<const TensorHeader> tensors,
                                           const SafetensorsMetadata& metadata = {});
  Outcome<void> write(std::span<const std::byte> bytes);
  // All bytes that the headers announced must have been written.
  Outcome<void> commit();
  std::int64_t size() const { return file_.size(); }  // of the file, as far as it is written

 private:
  SafetensorsWriter(AtomicFile file, std::int64_t bytes_left)
      : file_(std::move(file)), bytes_left_(bytes_left) {}
  AtomicFile file_;
  std::int64_t bytes_left_;
};

std::string shape_text(std::span<const std::int64_t> shape);  // "[4096, 1024]"

}  // namespace optimus
