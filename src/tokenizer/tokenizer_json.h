// Interprets a tokenizer.json and creates the parts of the tokenizer. Unsupported features are never ignored:
// the message names the file, the field and the value.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/pipeline_tokenizer.h"

namespace optimus {

// Throws UserError.
TokenizerParts read_tokenizer_parts(std::string_view json, const std::string& source);

}  // namespace optimus
