// Hugging Face's config.json: read into a ModelSpec, written from one.
//
// Reading is strict. A key is either honoured, or must have the value that changes nothing, or is bookkeeping
// that no computation depends on (tables in model/hf_config_keys.h); every other key is refused by name,
// because ignoring one silently would train a different model. Absent keys take transformers' defaults,
// except the main dimensions, which must be there.
//
// Known difference: a config's pad_token_id makes transformers start that row of the word embedding at zero
// and give its lookup no gradient. Rows of padding do not occur in packed training data, so we treat the row
// like any other; configs that we write have no pad_token_id, so that transformers does the same.
#pragma once

#include <string>

#include "base/json.h"
#include "model/spec.h"

namespace optimus {

// `source` is the file's name, for messages. Throws UserError.
ModelSpec spec_from_hf_config(const Json& config, const std::string& source);

// `path` is a config.json or a folder that holds one. The spec is named after the folder.
ModelSpec read_hf_config(const Path& path);

// A config.json that transformers 4 and 5 open: names of version 4 together with version 5's rope_parameters.
// spec_from_hf_config gives the same spec back, except for dropout that the family's config has no key for
// (embedding and hidden dropout of the Llama-like; BERT has one key for both): it matters in training only.
OrderedJson hf_config_from_spec(const ModelSpec& spec);

}  // namespace optimus
