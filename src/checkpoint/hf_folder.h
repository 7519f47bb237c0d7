// Creates the files of a Hugging Face folder other than the weights, so that from_pretrained can open trained
// models: config.json, generation_config.json and the tokenizer files. checkpoint/hf_tensors.h handles the
// weights, and model/hf_config.h interprets the keys of config.json.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/element.h"
#include "checkpoint/small_file.h"
#include "model/spec.h"
#include "tokenizer/token_id.h"

namespace optimus {

// Returns the files from which AutoTokenizer creates a tokenizer. `tokenizer` is an argument for
// open_tokenizer(): "bytes", the path of a tokenizer.json (related files in its folder are included), or a
// folder (if it contains no tokenizer, no files are returned). Throws ReportedError.
std::vector<SmallFile> hf_tokenizer_files(const std::string& tokenizer);

// Returns the ids of the tokens that end generated text, from generation_config.json in the folder, or
// otherwise from eos_token_id in config.json. Returns an empty vector if neither file specifies any. Throws
// ReportedError.
std::vector<TokenId> hf_end_tokens(const Path& folder);

struct HfDescription {
  ModelSpec model;
  ElementType type = ElementType::f32;  // element type of the weights
  std::string tokenizer;                // in the form that open_tokenizer() accepts; empty: no tokenizer
  // The folder from which the model was read. Its token ids and generation settings are preserved. Empty if
  // there is no such folder.
  Path origin;
};

// Returns all files of the Hugging Face folder except the weights. config.json comes last and must be written
// last, because a folder without it is not a model. Throws ReportedError.
std::vector<SmallFile> hf_description(const HfDescription& description);

// Writes the files in order, each of them atomically.
Outcome<void> write_files(FileSystem& files, const Path& folder, const std::vector<SmallFile>& small_files);

}  // namespace optimus
