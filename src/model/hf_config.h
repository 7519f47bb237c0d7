// Reads Hugging Face's config.json into a ModelSpec, and writes a config.json from a ModelSpec.
//
// Reading is strict. A key is supported, or must have a value that has no effect, or is bookkeeping on which
// no computation depends (see the tables in model/hf_config_keys.cpp). Every other key is rejected with a
// message that names it, because silently ignoring it would train a different model. Absent keys get the
// defaults of transformers, but the main dimensions are required.
//
// Known difference: transformers initializes the embedding row of pad_token_id to zero and computes no
// gradient for it. Packed training data contains no padding tokens, so this project treats the row like any
// other. Written configs have no pad_token_id, so transformers does the same.
#pragma once

#include <string>

#include "base/json.h"
#include "model/spec.h"

namespace optimus {

// `source` is the file name that messages show. Throws a UserError.
ModelSpec spec_from_hf_config(const Json& config, const std::string& source);

// `path` is a config.json or a folder that contains one. The spec is named after the folder.
ModelSpec read_hf_config(const Path& path);

// A config.json that transformers 4 and 5 can load: the names of version 4 plus the rope_parameters of
// version 5. spec_from_hf_config() returns the same spec, except for dropout rates without a key of their own
// in the family's config: Llama-like families have no keys for embedding and hidden dropout, and BERT has one
// key for both. These rates matter only for training.
OrderedJson hf_config_from_spec(const ModelSpec& spec);

}  // namespace optimus
