// Training text for the demo model that exists on every machine with a compiler: the headers of the C++
// standard library, without their license comments.
#pragma once

#include <memory>

#include "data/token_set.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

// Throws UserError if this machine has no such headers.
std::shared_ptr<const TokenSet> demo_text(const Tokenizer& tokenizer);
// The text without its leading comment if that comment names a license.
std::string_view without_license(std::string_view text);

}  // namespace optimus
