// Text from tokens that come one by one, to be shown while it is made. Not how a tokenizer decodes (tokenizer/tokenizer.h).
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/tokenizer.h"

namespace optimus {

// What a model generates may be any bytes: valid UTF-8 without control characters, except line ends and tabs.
std::string printable(std::string_view text);

// Joined, the pieces are the printable text of all tokens, special ones left out. The work for a token does not grow with the
// number of tokens before it. The tokenizer must outlive this.
class TextStream {
 public:
  explicit TextStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // What can be shown now: whole characters. A token that ends inside a character gives nothing until the rest is there.
  std::string push(TokenId id);
  // What is left, complete or not.
  std::string finish() { return take(true); }

 private:
  std::string take(bool is_last);

  const Tokenizer& tokenizer_;
  // Some tokens that were shown, because decoders look at the token before, and then those that were not.
  std::vector<TokenId> ids_;
  std::size_t num_shown_ = 0;
};

}  // namespace optimus
