// Implements the look-up and reading functions of hf_tensors.h.
#include "checkpoint/hf_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>

#include "base/text.h"

namespace optimus {
namespace {

// If a file was saved from a model without a head, tensor names lack these prefixes.
constexpr std::string_view kPrefixes[] = {"transformer.", "model.", "bert."};

// Alternative suffixes of tensor names in published files.
struct Alias {
  std::string_view usual_suffix, alternative_suffix;
};
constexpr Alias kAliases[] = {
    {"LayerNorm.weight", "LayerNorm.gamma"},  // converted from TensorFlow
    {"LayerNorm.bias", "LayerNorm.beta"},
    {"cls.predictions.bias", "cls.predictions.decoder.bias"},  // one parameter with two names
};

// An additional or alternative name under which a tied word embedding may be stored.
struct TiedHead {
  std::string_view embedding, head;
};
constexpr TiedHead kTiedHeads[] = {
    {"transformer.wte.weight", "lm_head.weight"},
    {"model.embed_tokens.weight", "lm_head.weight"},
    {"bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"},
};

// The name endings of tensors that are ignored: buffers, and heads that are not trained.
constexpr std::string_view kIgnoredEndings[] = {
    ".attn.bias",
    ".attn.masked_bias",    // GPT-2's causal mask
    "rotary_emb.inv_freq",  // derived from the config
    "embeddings.position_ids",
    "embeddings.token_type_ids",
    "pooler.dense.weight",
    "pooler.dense.bias",  // head for sentence pairs
    "cls.seq_relationship.weight",
    "cls.seq_relationship.bias",
    "cls.predictions.decoder.bias",  // duplicate of cls.predictions.bias
};

std::string_view without_prefix(std::string_view name) {
  for (const std::string_view prefix : kPrefixes)
    if (starts_with(name, prefix)) return name.substr(prefix.size());
  return name;
}

std::string_view tied_head(std::string_view embedding) {
  const auto row = std::find_if(std::begin(kTiedHeads), std::end(kTiedHeads),
                                [&](const TiedHead& candidate) { return candidate.embedding == embedding; });
  return row == std::end(kTiedHeads) ? "" : row->head;
}

// The names under which a file may contain a tensor, with the preferred name first.
std::vector<std::string> possible_names(const LogicalTensor& tensor) {
  const std::string& name = tensor.hf.name;
  std::vector<std::string> names{name, std::string(without_prefix(name))};
  for (const Alias& alias : kAliases) {
    if (!ends_with(name, alias.usual_suffix)) continue;
    for (const std::string& usual_name : {names[0], names[1]})
      names.push_back(usual_name.substr(0, usual_name.size() - alias.usual_suffix.size()) +
                      std::string(alias.alternative_suffix));
  }
  if (tensor.is_tied_to_head) names.emplace_back(tied_head(name));
  return names;
}

SafetensorsFolder::Match find_tensor(const SafetensorsFolder& folder, const LogicalTensor& tensor) {
  for (const std::string& name : possible_names(tensor))
    if (const auto found = folder.find(name)) return found;
  throw UserError("{}: tensor {} is missing", folder.path().string(), in_quotes(tensor.hf.name, 200));
}

std::vector<std::int64_t> sizes(const Shape& shape) {
  return {shape.dims.begin(), shape.dims.begin() + shape.num_dims};
}

// The checkpoint tensor that contains this logical tensor. Checks its shape and type.
const StoredTensor& stored_tensor(const SafetensorsFolder& folder, const LogicalTensor& tensor) {
  const auto [match, file] = find_tensor(folder, tensor);
  if (match->shape != sizes(tensor.hf.shape))
    throw UserError("{}: tensor {} has shape {}, but the model requires {}", file->path().string(),
                    in_quotes(match->name, 200), shape_text(match->shape), text(tensor.hf.shape));
  if (!is_float(match->type))
    throw UserError("{}: tensor {}: expected type F64, F32, BF16 or F16, got {}", file->path().string(),
                    in_quotes(match->name, 200), text(match->type));
  return *match;
}

// The rows and columns of a box. A one-dimensional box is a single row.
struct Region {
  Span rows, columns;
};

Region region_of(const LogicalTensor& tensor, const Box& box) {
  ensure(box.num_dims == tensor.shape.num_dims && Box(tensor.shape).contains(box),
         "box {} is not inside {} with shape {}", text(box), tensor.name, text(tensor.shape));
  ensure(box.num_dims == 1 || box.num_dims == 2, "{} has {} dims", tensor.name, box.num_dims);
  if (box.num_dims == 1) return {{0, 1}, {box[0].begin + tensor.hf.offset, box[0].end + tensor.hf.offset}};
  return {{box[0].begin + tensor.hf.offset, box[0].end + tensor.hf.offset}, box[1]};
}

template <typename Real>
void decode_at(const StoredTensor& source, std::int64_t first, std::span<Real> out) {
  const auto size = static_cast<std::size_t>(width(source.type));
  decode(source.type, source.bytes.subspan(static_cast<std::size_t>(first) * size, out.size() * size), out);
}

// Element [row, column] of the logical tensor is element [column, row] in the file. Rows are processed in
// tiles, so that reads are contiguous and the written rows stay in the cache.
template <typename Real>
void read_transposed(const StoredTensor& source, const Region& region, std::span<Real> out) {
  constexpr std::int64_t kTile = 64;
  std::array<Real, kTile> tile;
  const std::int64_t stride = source.shape[1], num_columns = region.columns.size();
  for (std::int64_t row = region.rows.begin; row < region.rows.end; row += kTile) {
    const std::int64_t height = std::min(kTile, region.rows.end - row);
    for (std::int64_t column = region.columns.begin; column < region.columns.end; ++column) {
      decode_at(source, column * stride + row, std::span(tile).first(static_cast<std::size_t>(height)));
      const std::int64_t to = (row - region.rows.begin) * num_columns + column - region.columns.begin;
      for (std::int64_t r = 0; r < height; ++r)
        out[static_cast<std::size_t>(to + r * num_columns)] = tile[static_cast<std::size_t>(r)];
    }
  }
}

template <typename Real>
void read_box(const SafetensorsFolder& folder, const LogicalTensor& tensor, const Box& box,
              std::span<Real> out) {
  ensure(static_cast<std::int64_t>(out.size()) == box.num_elements(), "{} output values do not match box {}",
         out.size(), text(box));
  const StoredTensor& source = stored_tensor(folder, tensor);
  const Region region = region_of(tensor, box);
  if (tensor.hf.is_transposed) return read_transposed(source, region, out);
  const std::int64_t stride = source.shape.back();
  if (region.columns.size() == stride)  // complete rows are contiguous
    return decode_at(source, region.rows.begin * stride, out);
  const auto num_columns = static_cast<std::size_t>(region.columns.size());
  for (std::int64_t row = region.rows.begin; row < region.rows.end; ++row)
    decode_at(source, row * stride + region.columns.begin,
              out.subspan(static_cast<std::size_t>(row - region.rows.begin) * num_columns, num_columns));
}

// If the config ties the head to the embedding but the file also contains a head, both must have the same
// values. Otherwise the values of the head would be lost.
void check_tied_head(const SafetensorsFolder& folder, const LogicalTensor& embedding) {
  const std::string_view name = tied_head(embedding.hf.name);
  const StoredTensor& table = stored_tensor(folder, embedding);
  const auto [head, file] = folder.find(name);
  if (head == nullptr || head == &table) return;
  const bool is_same = head->type == table.type && head->shape == table.shape &&
                       std::memcmp(head->bytes.data(), table.bytes.data(), table.bytes.size()) == 0;
  if (!is_same)
    throw UserError(
        "{}: tensor {} differs from {}, but config.json ties them; set tie_word_embeddings to false",
        file->path().string(), in_quotes(name), in_quotes(table.name, 200));
}

bool is_ignored(std::string_view name, const ModelSpec& spec) {
  const auto ends_name = [&](std::string_view ending) { return ends_with(name, ending); };
  if (std::any_of(std::begin(kIgnoredEndings), std::end(kIgnoredEndings), ends_name)) return true;
  const auto is_head = [&](const TiedHead& row) { return row.head == name; };
  return spec.is_tied && std::any_of(std::begin(kTiedHeads), std::end(kTiedHeads), is_head);
}

}  // namespace

void check_hf_weights(const SafetensorsFolder& folder, const ModelSpec& spec, EventSink& events) {
  std::unordered_set<std::string_view> used;
  for (const LogicalTensor& tensor : logical_tensors(spec)) {
    used.insert(stored_tensor(folder, tensor).name);
    if (tensor.is_tied_to_head) check_tied_head(folder, tensor);
  }
  for (const SafetensorsFile& file : folder.files())
    for (const StoredTensor& tensor : file.tensors())
      if (!used.contains(tensor.name) && !is_ignored(tensor.name, spec))
        events.report(Warning{fmt::format("{}: tensor {} is not part of the model and is ignored",
                                          file.path().string(), in_quotes(tensor.name, 200))});
}

void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, const Box& box,
                  std::span<float> out) {
  read_box(folder, tensor, box, out);
}
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, const Box& box,
                  std::span<double> out) {
  read_box(folder, tensor, box, out);
}
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, std::span<float> out) {
  read_box(folder, tensor, Box(tensor.shape), out);
}
void read_logical(const SafetensorsFolder& folder, const LogicalTensor& tensor, std::span<double> out) {
  read_box(folder, tensor, Box(tensor.shape), out);
}

}  // namespace optimus
