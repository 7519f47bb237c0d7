// Text that every machine with a compiler has: the C++ standard library's headers, without the licence that each begins with.
#pragma once

#include <memory>

#include "data/token_set.h"
#include "tokenizer/tokenizer.h"

namespace optimus {

// Throws UserError when this machine has no such headers.
std::shared_ptr<const TokenSet> demo_text(const Tokenizer& tokenizer);
// A text without the comment that it begins with, when that names a licence.
std::string_view without_licence(std::string_view text);

}  // namespace optimus
