// Training text for the demo model: the headers of the C++ standard library, without their license comments.
// They exist on every machine with a compiler.
#pragma once

#include <memory>

#include "data/token_set.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

// Throws UserError if this machine does not have these headers.
std::shared_ptr<const TokenSet> demo_text(const Tokenizer& tokenizer);
// Removes the leading comment if it mentions a license.
std::string_view without_license(std::string_view text);

}  // namespace optimus
