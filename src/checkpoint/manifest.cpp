// Implements the validation of manifests and the merging of shard lists; see manifest.h. The file format is
// in manifest_json.cpp.
#include "checkpoint/manifest.h"

#include <algorithm>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/text.h"
#include "checkpoint/tiling.h"

namespace optimus {
namespace {

// The maximum number of pieces per field and tensor. Each rank stores one or two boxes of a tensor. The limit
// bounds the memory of the coverage check.
constexpr std::size_t kMaxPieces = 1 << 17;
constexpr std::int64_t kMaxElementBytes = 8;

auto sort_key(const CheckpointPiece& piece) { return std::tie(piece.field, piece.tensor, piece.box); }

std::string text_of(const TilingMistake& mistake, int num_dims) {
  return fmt::format("[{}]", fmt::join(mistake.element.begin(), mistake.element.begin() + num_dims, ", "));
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." && name != kManifestFile &&
         std::none_of(name.begin(), name.end(), [](unsigned char c) { return c == '/' || c < 0x20; });
}

void check_files(const std::vector<CheckpointFile>& files, const std::string& source) {
  std::unordered_set<std::string_view> names;
  std::int64_t sum = 0;
  for (const CheckpointFile& file : files) {
    if (!is_plain_name(file.name))
      throw UserError("{}: file {}: expected the name of a file in the manifest's folder, without a path",
                      source, in_quotes(file.name));
    if (!names.insert(file.name).second)
      throw UserError("{}: file {} is listed twice", source, in_quotes(file.name));
    if (file.bytes.value < 0 || __builtin_add_overflow(sum, file.bytes.value, &sum))
      throw UserError("{}: file {}: invalid size of {} bytes", source, in_quotes(file.name),
                      file.bytes.value);
  }
}

void check_tensors(const std::vector<CheckpointTensor>& tensors, const std::string& source) {
  std::unordered_set<std::string_view> names;
  for (const CheckpointTensor& tensor : tensors) {
    const std::string description = fmt::format("{}: tensor {}", source, in_quotes(tensor.name));
    if (!names.insert(tensor.name).second) throw UserError("{} is listed twice", description);
    if (tensor.shape.num_dims < 1 || tensor.shape.num_dims > kMaxDims)
      throw UserError("{}: expected 1 to {} dims, got {}", description, kMaxDims, tensor.shape.num_dims);
    std::int64_t bytes = kMaxElementBytes;
    for (int d = 0; d < tensor.shape.num_dims; ++d)
      if (tensor.shape[d] < 1 || __builtin_mul_overflow(bytes, tensor.shape[d], &bytes))
        throw UserError("{}: expected a shape with positive sizes and a size in bytes below 2^63, got {}",
                        description, text(tensor.shape));
  }
}

void check_piece(const CheckpointPiece& piece, const Manifest& manifest, const std::string& source) {
  if (piece.tensor < 0 || piece.tensor >= std::ssize(manifest.tensors))
    throw UserError("{}: a piece refers to tensor {}, but there are {} tensors", source, piece.tensor,
                    manifest.tensors.size());
  const CheckpointTensor& tensor = manifest.tensors[static_cast<std::size_t>(piece.tensor)];
  // The text is formatted only on demand, because there may be millions of pieces.
  const auto description = [&] { return fmt::format("{}: tensor {}", source, in_quotes(tensor.name)); };
  if (piece.file < 0 || piece.file >= std::ssize(manifest.files))
    throw UserError("{}: a piece refers to file {}, but there are {} files", description(), piece.file,
                    manifest.files.size());
  const std::string& file = manifest.files[static_cast<std::size_t>(piece.file)].name;
  if (!ends_with(file, ".safetensors"))
    throw UserError("{}: a piece is in file {}, which is not a .safetensors file", description(),
                    in_quotes(file));
  bool is_inside = piece.box.num_dims == tensor.shape.num_dims;
  for (int d = 0; is_inside && d < tensor.shape.num_dims; ++d)
    is_inside = piece.box[d].begin >= 0 && piece.box[d].begin < piece.box[d].end &&
                piece.box[d].end <= tensor.shape[d];
  if (!is_inside)
    throw UserError("{}: box {} is empty or not inside shape {}", description(), text(piece.box),
                    text(tensor.shape));
}

// Checks that the pieces of `field` cover every tensor exactly once.
void check_coverage(StateField field, const Manifest& manifest, const std::string& source) {
  std::vector<Box> boxes;
  for (int t = 0; t < std::ssize(manifest.tensors); ++t) {
    const CheckpointTensor& tensor = manifest.tensors[static_cast<std::size_t>(t)];
    const auto pieces = manifest.pieces_of(field, t);
    const std::string description =
        fmt::format("{}: {} of tensor {}", source, text(field), in_quotes(tensor.name));
    if (pieces.size() > kMaxPieces)
      throw UserError("{} is in {} pieces; at most {} are supported", description, pieces.size(), kMaxPieces);
    boxes.clear();
    for (const CheckpointPiece& piece : pieces) boxes.push_back(piece.box);
    const auto mistake = find_tiling_mistake(tensor.shape, boxes);
    if (mistake && mistake->num_boxes == 0)
      throw UserError("{}: element {} is not in any piece", description,
                      text_of(*mistake, tensor.shape.num_dims));
    if (mistake)
      throw UserError("{}: element {}: expected one piece, got {}", description,
                      text_of(*mistake, tensor.shape.num_dims), mistake->num_boxes);
  }
}

}  // namespace

std::string_view text(StateField field) {
  switch (field) {
    case StateField::master:
      return "master";
    case StateField::first:
      return "first";
    case StateField::second:
      return "second";
  }
  return "";
}

std::span<const CheckpointPiece> Manifest::pieces_of(StateField field, int tensor) const {
  const auto [begin, end] =
      std::equal_range(pieces.begin(), pieces.end(), CheckpointPiece{field, tensor, {}, 0},
                       [](const CheckpointPiece& a, const CheckpointPiece& b) {
                         return std::tie(a.field, a.tensor) < std::tie(b.field, b.tensor);
                       });
  return {begin, end};
}

bool Manifest::has_field(StateField field) const {
  return std::binary_search(
      pieces.begin(), pieces.end(), CheckpointPiece{field, 0, {}, 0},
      [](const CheckpointPiece& a, const CheckpointPiece& b) { return a.field < b.field; });
}

Bytes Manifest::bytes() const {
  Bytes sum;
  for (const CheckpointFile& file : files) sum += file.bytes;
  return sum;
}

std::string stored_name(StateField field, std::string_view tensor, const Box& box) {
  return fmt::format("{}/{}{}", text(field), tensor, text(box));
}

void make_valid(Manifest& manifest, const std::string& source) {
  if (manifest.step < 0) throw UserError("{}: step {} is negative", source, manifest.step);
  check_files(manifest.files, source);
  check_tensors(manifest.tensors, source);
  for (const CheckpointPiece& piece : manifest.pieces) check_piece(piece, manifest, source);
  std::sort(manifest.pieces.begin(), manifest.pieces.end(),
            [](const CheckpointPiece& a, const CheckpointPiece& b) { return sort_key(a) < sort_key(b); });
  if (!manifest.has_field(StateField::master))
    throw UserError("{}: no piece contains master weights", source);
  for (const StateField field : kStateFields)
    if (manifest.has_field(field)) check_coverage(field, manifest, source);
}

Manifest merge(std::span<const Manifest> lists, const std::string& source) {
  Manifest result;
  std::unordered_map<std::string, int> tensor_index;
  for (const Manifest& list : lists) {
    if (&list == &lists.front()) result.step = list.step;
    if (list.step != result.step)
      throw UserError("{}: one rank has stored step {}, but another rank has stored step {}", source,
                      result.step, list.step);
    std::vector<int> merged_index;  // index in `result` of each tensor of the list
    for (const CheckpointTensor& tensor : list.tensors) {
      const auto [entry, is_new] = tensor_index.emplace(tensor.name, static_cast<int>(result.tensors.size()));
      if (is_new) result.tensors.push_back(tensor);
      const Shape& shape = result.tensors[static_cast<std::size_t>(entry->second)].shape;
      if (shape != tensor.shape)
        throw UserError("{}: tensor {} has shape {} on one rank, but {} on another", source,
                        in_quotes(tensor.name), text(shape), text(tensor.shape));
      merged_index.push_back(entry->second);
    }
    const int first_file = static_cast<int>(result.files.size());
    result.files.insert(result.files.end(), list.files.begin(), list.files.end());
    for (CheckpointPiece piece : list.pieces) {
      if (piece.tensor < 0 || piece.tensor >= std::ssize(merged_index) || piece.file < 0 ||
          piece.file >= std::ssize(list.files))
        throw UserError("{}: the shard list of a rank refers to a tensor or file that is not in it", source);
      piece.tensor = merged_index[static_cast<std::size_t>(piece.tensor)];
      piece.file += first_file;
      result.pieces.push_back(piece);
    }
  }
  return result;
}

}  // namespace optimus
