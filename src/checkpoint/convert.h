// Models in other forms: Hugging Face folders and checkpoints of ours, written from any source of weights; the commands convert
// and export. Pure; that the result computes the same is checked by inference/compare_logits.h.
#pragma once

#include <string>

#include "base/event.h"
#include "base/options.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/open_model.h"

namespace optimus {

// Writes weights first and config.json last, so that a folder in which writing ended early is no model. The folder is made; what
// it holds of an earlier model is replaced. Throws UserError.
void write_model_folder(FileSystem& files, const Path& folder, const HfDescription& description,
                        const WeightSource& weights, Bytes largest_shard, EventSink& events);

// Writes RUN/checkpoints/step-0: weights without moments, to be used by any command but --resume. Some tensors at a time are in
// memory. Throws UserError.
void write_model_checkpoint(FileSystem& files, const Path& run, const HfDescription& description,
                            const WeightSource& weights, EventSink& events);

enum class ModelFormat { hf, checkpoint };

struct ConvertOptions {
  std::string from;
  Path to;
  ModelFormat format = ModelFormat::hf;
  std::optional<ElementType> type;  // nothing: as the source has them; in checkpoints fp32 at least
  Bytes largest_shard{std::int64_t{5} << 30};
  bool skips_check = false;
  std::int64_t threads = 0;  // of the check
};
// Everything but from and to, which are words of one command and flags of the other.
void declare(OptionTable& table, ConvertOptions& options);

struct Converted {
  ModelSpec model;
  ElementType from_type = ElementType::f32, to_type = ElementType::f32;
};
// The folder `to` must be new or empty. Throws UserError.
Converted convert(const ConvertOptions& options, FileSystem& files, EventSink& events);

OrderedJson to_json(const ConvertOptions& options, const Converted& done);
std::string text(const ConvertOptions& options, const Converted& done);

}  // namespace optimus
