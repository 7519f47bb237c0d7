// Reads Hugging Face's config.json into a ModelSpec and writes it from one.
//
// Reading is strict. A key is either supported, or must have the one value that has no effect, or is
// bookkeeping that no computation depends on (tables in model/hf_config_keys.cpp). Every other key is
// rejected by name, because ignoring it silently would train a different model. Absent keys take the defaults
// of transformers, except the main dimensions, which are required.
//
// Known difference: transformers initializes the embedding row of pad_token_id to zero and computes no
// gradient for it. Packed training data contains no padding tokens, so this row is treated like any other.
// Written configs have no pad_token_id, so transformers does the same.
#pragma once

#include <string>

#include "base/json.h"
#include "model/spec.h"

namespace optimus {

// `source` is the file name for messages. Throws UserError.
ModelSpec spec_from_hf_config(const Json& config, const std::string& source);

// `path` is a config.json or a folder that contains one. The spec is named after the folder.
ModelSpec read_hf_config(const Path& path);

// A config.json that transformers 4 and 5 can load: the names of version 4 plus the rope_parameters of
// version 5. spec_from_hf_config() returns the same spec, except for dropout rates for which the family's
// config has no key (embedding and hidden dropout of Llama-like families; BERT has one key for both). These
// rates matter only for training.
OrderedJson hf_config_from_spec(const ModelSpec& spec);

}  // namespace optimus
