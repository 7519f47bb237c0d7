// The files of a Hugging Face folder other than its weights: config.json, generation_config.json and the
// files of the tokenizer, so that from_pretrained opens trained models. The weights are in
// checkpoint/hf_tensors.h; the keys of a config are interpreted in model/hf_config.h.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/element.h"
#include "checkpoint/small_file.h"
#include "model/spec.h"
#include "tokenizer/token_id.h"

namespace optimus {

// Returns the files from which AutoTokenizer creates a tokenizer. `tokenizer` has the form that
// open_tokenizer() accepts: "bytes", the path of a tokenizer.json (related files in its folder are included),
// or a folder (no files are returned if it contains no tokenizer). Throws ReportedError.
std::vector<SmallFile> hf_tokenizer_files(const std::string& tokenizer);

// Returns the ids of the tokens that end generated text, from the folder's generation_config.json or
// otherwise from eos_token_id in config.json. Empty if neither specifies any. Throws ReportedError.
std::vector<TokenId> hf_end_tokens(const Path& folder);

struct HfDescription {
  ModelSpec model;
  ElementType type = ElementType::f32;  // element type of the weights
  std::string tokenizer;                // in the form that open_tokenizer() accepts; empty: no tokenizer
  // The folder that the model was read from; its token ids and generation settings are preserved. Empty if
  // there is none.
  Path origin;
};

// Returns all files of the Hugging Face folder except the weights. config.json is the last one and must be
// written last, because a folder without it is not a model. Throws ReportedError.
std::vector<SmallFile> hf_description(const HfDescription& description);

// Writes the files in order, each atomically.
Outcome<void> write_files(FileSystem& files, const Path& folder, const std::vector<SmallFile>& small_files);

}  // namespace optimus
