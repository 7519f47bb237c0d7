// A Hugging Face folder around its weights: config.json, generation_config.json and the tokenizer's files, so that
// from_pretrained opens what was trained here. Not the weights (checkpoint/hf_tensors.h), nor which key of a config means what
// (model/hf_config.h).
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/element.h"
#include "checkpoint/small_file.h"
#include "model/spec.h"
#include "tokenizer/token_id.h"

namespace optimus {

// The files from which AutoTokenizer makes the tokenizer that `tokenizer` names, as open_tokenizer() takes it: "bytes", a
// tokenizer.json with what lies beside it, or a folder (none when it holds none). Throws UserError.
std::vector<SmallFile> hf_tokenizer_files(const std::string& tokenizer);

// Of a folder, by its own word (generation_config.json, else config.json's eos_token_id): where generated text ends. None when
// it does not say. Throws UserError.
std::vector<TokenId> hf_end_tokens(const Path& folder);

struct HfDescription {
  ModelSpec model;
  ElementType type = ElementType::f32;  // of the weights
  std::string tokenizer;                // as open_tokenizer() takes it; empty: a folder without one
  Path
      origin;  // the folder that the model came from: its token ids and generation settings are kept; may be empty
};

// Everything but the weights. config.json is the last: a folder without it is no model, so write it last. Throws UserError.
std::vector<SmallFile> hf_description(const HfDescription& description);

// Writes the files in their order, each whole or not at all.
Outcome<void> write_files(FileSystem& files, const Path& folder, const std::vector<SmallFile>& all);

}  // namespace optimus
