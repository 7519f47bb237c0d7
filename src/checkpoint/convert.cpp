// Implements convert.h.
#include "checkpoint/convert.h"

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/hf_tensors.h"
#include "checkpoint/save.h"
#include "checkpoint/training_state.h"

namespace optimus {
namespace {

template <typename Real>
Outcome<void> write_weights(FileSystem& files, const Path& folder, const HfDescription& description,
                            const WeightSource& weights, Bytes max_shard_size, EventSink& events) {
  const std::vector<LogicalTensor> tensors = logical_tensors(description.model);
  std::int64_t num_done = 0;
  const ReadTensor<Real> read = [&](const LogicalTensor& tensor, std::span<Real> out) {
    events.report(Progress{"writing", num_done++, std::ssize(tensors), "tensors"});
    weights.read(tensor, out);
  };
  return write_hf_weights(files, folder, tensors, read, {description.type, max_shard_size});
}

void remove_model(const Path& folder) {
  std::error_code error;
  std::filesystem::remove(folder / "config.json", error);
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().starts_with("model")) std::filesystem::remove(it->path(), ignored);
  }
}

void require_empty_folder(const Path& folder) {
  std::error_code error;
  if (!std::filesystem::exists(folder, error)) return;
  if (!std::filesystem::is_directory(folder, error))
    throw UserError("{} is a file; choose a new or empty folder", folder.string());
  if (!std::filesystem::is_empty(folder, error))
    throw UserError("{} is not empty; choose a new or empty folder", folder.string());
}

}  // namespace

void write_model_folder(FileSystem& files, const Path& folder, const HfDescription& description,
                        const WeightSource& weights, Bytes max_shard_size, EventSink& events) {
  const std::vector<SmallFile> small_files = hf_description(description);
  value_or_throw(files.create_folders(folder));
  value_or_throw(files.remove(folder / "config.json"));
  const auto write = weights.type() == ElementType::f64 ? write_weights<double> : write_weights<float>;
  try {
    value_or_throw(write(files, folder, description, weights, max_shard_size, events));
    value_or_throw(write_files(files, folder, small_files));
  } catch (...) {  // removes the incomplete model
    remove_model(folder);
    throw;
  }
}

namespace {

constexpr std::int64_t kMaxValuesInMemory = 1 << 28;  // maximum number of values in memory

// Groups of consecutive tensors. The tensors of a group are in memory at the same time and are written
// together.
std::vector<std::vector<LogicalTensor>> groups_of(const ModelSpec& model) {
  std::vector<std::vector<LogicalTensor>> groups(1);
  std::int64_t num_values = 0;
  for (LogicalTensor& tensor : logical_tensors(model)) {
    if (num_values > 0 && num_values + tensor.shape.num_elements() > kMaxValuesInMemory) {
      groups.emplace_back();
      num_values = 0;
    }
    num_values += tensor.shape.num_elements();
    groups.back().push_back(std::move(tensor));
  }
  return groups;
}

std::vector<std::byte> encode_tensor(const WeightSource& weights, const LogicalTensor& tensor,
                                     ElementType type) {
  const auto count = static_cast<std::size_t>(tensor.shape.num_elements());
  std::vector<std::byte> bytes(count * static_cast<std::size_t>(width(type)));
  const auto fill = [&](auto values) {
    weights.read(tensor, std::span(values));
    encode(type, std::span<const typename decltype(values)::value_type>(values), bytes);
  };
  if (weights.type() == ElementType::f64)
    fill(std::vector<double>(count));
  else
    fill(std::vector<float>(count));
  return bytes;
}

// Writes the tensors of one group as the shards of one writer rank.
Outcome<Bytes> write_group(FileSystem& files, const Path& folder, int rank,
                           const std::vector<LogicalTensor>& tensors, const WeightSource& weights,
                           ElementType type) {
  std::vector<std::vector<std::byte>> values;
  std::vector<StatePiece> pieces;
  for (const LogicalTensor& tensor : tensors) values.push_back(encode_tensor(weights, tensor, type));
  for (std::size_t i = 0; i < tensors.size(); ++i)
    pieces.push_back(
        {StateField::master, tensors[i].name, tensors[i].shape, Box(tensors[i].shape), type, values[i]});
  return write_shards(files, folder, Rank{rank}, pieces);
}

}  // namespace

void write_model_checkpoint(FileSystem& files, const Path& run, const HfDescription& description,
                            const WeightSource& weights, EventSink& events) {
  CommitOptions commit{.files = hf_description(description)};
  commit.files.push_back({std::string(kTrainingStateFile), training_state_text({})});
  const std::vector<std::vector<LogicalTensor>> groups = groups_of(description.model);
  commit.num_writers = static_cast<int>(groups.size());
  value_or_throw(files.create_folders(run));
  const Path folder = value_or_throw(begin_checkpoint(files, run, 0));
  try {
    for (int rank = 0; rank < commit.num_writers; ++rank) {
      events.report(Progress{"writing", rank, commit.num_writers, "shards"});
      value_or_throw(write_group(files, folder, rank, groups[static_cast<std::size_t>(rank)], weights,
                                 description.type));
    }
    value_or_throw(commit_checkpoint(files, folder, commit));
  } catch (...) {
    abandon_checkpoint(files, folder);
    throw;
  }
}

void declare(OptionTable& table, ConvertOptions& o) {
  table.add_choice<std::optional<ElementType>>("dtype", o.type,
                                               {{"fp64", ElementType::f64},
                                                {"fp32", ElementType::f32},
                                                {"bf16", ElementType::bf16},
                                                {"fp16", ElementType::f16}},
                                               "element type of the weights (default: unchanged)");
  table.add("shard-size", o.max_shard_size, "SIZE",
            "maximum size of a weight file; larger models are split into several files");
  table.add("no-check", o.skips_check, "do not compare the logits of the two models");
  table.add("threads", o.threads, "N", "number of threads for the comparison (default: all cores)");
}

ConvertedModel convert(const ConvertOptions& options, FileSystem& files, EventSink& events) {
  if (options.max_shard_size < Bytes(1))
    throw UsageError("--shard-size: expected at least 1 byte, got {}", options.max_shard_size.value);
  require_empty_folder(options.to);
  const OpenedModel from = open_trained_model(options.from, events);
  ConvertedModel converted{from.spec, from.weights->type(), options.type.value_or(from.weights->type())};
  // Checkpoints contain master weights, which always have at least 32 bits.
  if (options.format == ModelFormat::checkpoint && !options.type && width(converted.to_type) < 4)
    converted.to_type = ElementType::f32;
  const HfDescription description{converted.model, converted.to_type, from.folder.string(), from.folder};
  switch (options.format) {
    case ModelFormat::hf:
      write_model_folder(files, options.to, description, *from.weights, options.max_shard_size, events);
      break;
    case ModelFormat::checkpoint:
      write_model_checkpoint(files, options.to, description, *from.weights, events);
      break;
  }
  return converted;
}

OrderedJson to_json(const ConvertOptions& options, const ConvertedModel& converted) {
  OrderedJson json;
  json["folder"] = options.to.string();
  json["model_type"] = text(converted.model.family);
  json["parameters"] = num_parameters(converted.model);
  json["dtype"] = text(converted.to_type);
  json["from_dtype"] = text(converted.from_type);
  return json;
}

std::string text(const ConvertOptions& options, const ConvertedModel& converted) {
  return fmt::format(
      "{}: {} with {} parameters, {}{}\n", options.to.string(), text(converted.model.family),
      with_commas(num_parameters(converted.model)), text(converted.to_type),
      converted.to_type == converted.from_type ? "" : fmt::format(" (from {})", text(converted.from_type)));
}

}  // namespace optimus
