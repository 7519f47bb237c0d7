// Converts models from any weight source to Hugging Face folders or checkpoints. Used by the commands convert
// and export. inference/compare_logits.h checks that the converted model computes the same logits.
#pragma once

#include <string>

#include "base/event.h"
#include "base/options.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/open_model.h"

namespace optimus {

// Writes a Hugging Face folder. config.json is written last, so that an incomplete folder is not a valid
// model. Creates the folder if needed and replaces an earlier model in it. Throws ReportedError if writing
// fails.
void write_model_folder(FileSystem& files, const Path& folder, const HfDescription& description,
                        const WeightSource& weights, Bytes max_shard_size, EventSink& events);

// Writes RUN/checkpoints/step-0 with weights but without optimizer moments. Such a checkpoint can be used
// everywhere except with `--resume`. Only a limited number of tensors is in memory at a time. Throws
// ReportedError if writing fails.
void write_model_checkpoint(FileSystem& files, const Path& run, const HfDescription& description,
                            const WeightSource& weights, EventSink& events);

enum class ModelFormat { hf, checkpoint };

struct ConvertOptions {
  std::string from;
  Path to;
  ModelFormat format = ModelFormat::hf;
  std::optional<ElementType> type;  // if empty, the type of the source, but at least fp32 in checkpoints
  Bytes max_shard_size{std::int64_t{5} << 30};
  bool skips_check = false;
  std::int64_t threads = 0;  // number of threads that compare the logits; 0: all cores
};
// Declares all options except `from` and `to`, which are positional arguments of one command and flags of the
// other.
void declare(OptionTable& table, ConvertOptions& options);

struct ConvertedModel {
  ModelSpec model;
  ElementType from_type = ElementType::f32, to_type = ElementType::f32;
};
// Converts the model `options.from` and writes it to the folder `options.to`, which must be new or empty.
// Throws ReportedError.
ConvertedModel convert(const ConvertOptions& options, FileSystem& files, EventSink& events);

OrderedJson to_json(const ConvertOptions& options, const ConvertedModel& converted);
std::string text(const ConvertOptions& options, const ConvertedModel& converted);

}  // namespace optimus
