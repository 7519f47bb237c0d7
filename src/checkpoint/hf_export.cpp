// Implements the export functions of hf_tensors.h.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "base/json.h"
#include "checkpoint/hf_tensors.h"

namespace optimus {
namespace {

template <typename Real>
void copy_into(const LogicalTensor& tensor, std::span<const Real> values, std::span<Real> whole) {
  ensure(static_cast<std::int64_t>(values.size()) == tensor.shape.num_elements() &&
             static_cast<std::int64_t>(whole.size()) == tensor.hf.shape.num_elements(),
         "{}: cannot place {} values into {}", tensor.name, values.size(), whole.size());
  if (!tensor.hf.is_transposed) {
    const std::int64_t row = tensor.shape.num_dims == 1 ? 1 : tensor.shape[1];
    std::copy(values.begin(), values.end(), whole.begin() + tensor.hf.offset * row);
    return;
  }
  const std::int64_t stride = tensor.hf.shape[1], num_columns = tensor.shape[1];
  constexpr std::int64_t kTile = 64;  // rows per tile, so that a tile of the source stays in the cache
  for (std::int64_t first = 0; first < tensor.shape[0]; first += kTile)
    for (std::int64_t column = 0; column < num_columns; ++column)
      for (std::int64_t row = first; row < std::min(first + kTile, tensor.shape[0]); ++row)
        whole[static_cast<std::size_t>(column * stride + tensor.hf.offset + row)] =
            values[static_cast<std::size_t>(row * num_columns + column)];
}

struct ShardPlan {
  std::string file;
  std::vector<HfTensor> tensors;
  Bytes size;
};

Bytes size_of(const HfTensor& tensor, ElementType type) {
  return Bytes(tensor.shape.num_elements() * width(type));
}

// Assigns tensors to shards in order. Starts a new shard if the next tensor does not fit.
std::vector<ShardPlan> plan_shards(std::vector<HfTensor> tensors, const HfExport& options) {
  std::vector<ShardPlan> shards(1);
  for (HfTensor& tensor : tensors) {
    const Bytes size = size_of(tensor, options.type);
    if (!shards.back().tensors.empty() && shards.back().size + size > options.max_shard_size)
      shards.emplace_back();
    shards.back().size += size;
    shards.back().tensors.push_back(std::move(tensor));
  }
  for (std::size_t i = 0; i < shards.size(); ++i)
    shards[i].file = shards.size() == 1
                         ? std::string(kWeightsFile)
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  return shards;
}

std::string index_text(std::span<const ShardPlan> shards) {
  Bytes total;
  OrderedJson map = OrderedJson::object();
  for (const ShardPlan& shard : shards) {
    total += shard.size;
    for (const HfTensor& tensor : shard.tensors) map[tensor.name] = shard.file;
  }
  return OrderedJson{{"metadata", {{"total_size", total.value}}}, {"weight_map", std::move(map)}}.dump(2) +
         "\n";
}

// Encodes in blocks to avoid a second copy of a large tensor.
template <typename Real>
Outcome<void> write_values(SafetensorsWriter& writer, ElementType type, std::span<const Real> values) {
  constexpr std::size_t kBlock = 1 << 18;
  const auto size = static_cast<std::size_t>(width(type));
  std::vector<std::byte> bytes(std::min(kBlock, values.size()) * size);
  for (std::size_t at = 0; at < values.size(); at += kBlock) {
    const std::span<const Real> block = values.subspan(at, std::min(kBlock, values.size() - at));
    const std::span<std::byte> encoded = std::span(bytes).first(block.size() * size);
    encode(type, block, encoded);
    if (Outcome<void> outcome = writer.write(encoded); !outcome) return outcome;
  }
  return {};
}

template <typename Real>
std::vector<Real> assemble(const HfTensor& tensor, const ReadTensor<Real>& read) {
  std::vector<Real> whole(static_cast<std::size_t>(tensor.shape.num_elements()));
  if (tensor.parts.size() == 1 && !tensor.parts[0].hf.is_transposed) {
    read(tensor.parts[0], whole);
    return whole;
  }
  std::vector<Real> part;
  for (const LogicalTensor& logical : tensor.parts) {
    part.resize(static_cast<std::size_t>(logical.shape.num_elements()));
    read(logical, part);
    copy_into<Real>(logical, part, whole);
  }
  return whole;
}

template <typename Real>
Outcome<void> write_shard(FileSystem& files, const Path& path, const ShardPlan& shard,
                          const ReadTensor<Real>& read, ElementType type) {
  std::vector<TensorHeader> headers;
  for (const HfTensor& tensor : shard.tensors)
    headers.push_back(
        {tensor.name, type, {tensor.shape.dims.begin(), tensor.shape.dims.begin() + tensor.shape.num_dims}});
  // transformers rejects files whose metadata does not specify the framework.
  Outcome<SafetensorsWriter> writer = SafetensorsWriter::create(files, path, headers, {{"format", "pt"}});
  if (!writer) return tl::unexpected(writer.error());
  for (const HfTensor& tensor : shard.tensors) {
    const std::vector<Real> whole = assemble(tensor, read);
    if (Outcome<void> outcome = write_values<Real>(*writer, type, whole); !outcome) return outcome;
  }
  return writer->commit();
}

template <typename Real>
Outcome<void> write_all(FileSystem& files, const Path& folder, const std::vector<LogicalTensor>& tensors,
                        const ReadTensor<Real>& read, const HfExport& options) {
  ensure(is_float(options.type), "weights cannot be stored as {}", text(options.type));
  const std::vector<ShardPlan> shards = plan_shards(hf_tensors(tensors), options);
  for (const ShardPlan& shard : shards)
    if (Outcome<void> outcome = write_shard(files, folder / shard.file, shard, read, options.type); !outcome)
      return outcome;
  // Removes the index of an earlier export.
  if (shards.size() == 1) return files.remove(folder / kWeightsIndex);
  if (Outcome<void> outcome = write_atomically(files, folder / kWeightsIndex, index_text(shards)); !outcome)
    return outcome;
  return files.remove(folder / kWeightsFile);  // transformers would read this file instead of the shards
}

}  // namespace

std::vector<HfTensor> hf_tensors(const std::vector<LogicalTensor>& tensors) {
  std::vector<HfTensor> result;
  std::unordered_map<std::string, std::size_t> places;
  for (const LogicalTensor& tensor : tensors) {
    const auto [place, is_new] = places.emplace(tensor.hf.name, result.size());
    if (is_new) result.push_back({tensor.hf.name, tensor.hf.shape, {}});
    result[place->second].parts.push_back(tensor);
  }
  for (const HfTensor& tensor : result) {
    std::int64_t covered = 0;
    for (const LogicalTensor& part : tensor.parts) covered += part.shape.num_elements();
    ensure(covered == tensor.shape.num_elements(), "the parts of {} cover {} of {} values", tensor.name,
           covered, tensor.shape.num_elements());
  }
  return result;
}

void place_logical(const LogicalTensor& tensor, std::span<const float> values, std::span<float> whole) {
  copy_into(tensor, values, whole);
}
void place_logical(const LogicalTensor& tensor, std::span<const double> values, std::span<double> whole) {
  copy_into(tensor, values, whole);
}

Outcome<void> write_hf_weights(FileSystem& files, const Path& folder,
                               const std::vector<LogicalTensor>& tensors, const ReadTensor<float>& read,
                               const HfExport& options) {
  return write_all(files, folder, tensors, read, options);
}
Outcome<void> write_hf_weights(FileSystem& files, const Path& folder,
                               const std::vector<LogicalTensor>& tensors, const ReadTensor<double>& read,
                               const HfExport& options) {
  return write_all(files, folder, tensors, read, options);
}

}  // namespace optimus
