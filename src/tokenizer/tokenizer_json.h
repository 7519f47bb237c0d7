// Understands a tokenizer.json: makes the parts of the tokenizer that it describes. What we do not do is
// refused by name (file, field, value), never ignored.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/pipeline_tokenizer.h"

namespace optimus {

// Throws UserError.
TokenizerParts read_tokenizer_parts(std::string_view json, const std::string& source);

}  // namespace optimus
