// Interprets a tokenizer.json and creates the parts of the tokenizer. Unsupported features are never ignored:
// they are rejected with a message that names the file, the field and the value.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/pipeline_tokenizer.h"

namespace optimus {

// `source` is the file name that messages show. Throws a UserError if the document is invalid or not
// supported.
TokenizerParts read_tokenizer_parts(std::string_view json, const std::string& source);

}  // namespace optimus
