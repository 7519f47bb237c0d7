// Decoding: converts tokens back to text. A list of steps transforms the texts of the tokens, and the results
// are joined.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "tokenizer/normalizer.h"

namespace optimus {

// Converts characters of the byte-level alphabet to bytes. Invalid UTF-8 in the result becomes U+FFFD.
struct ByteLevelDecoder {};
// Removes the prefix from tokens that have it and puts a space before all other tokens. `cleanup` removes the
// spaces before punctuation.
struct WordPieceDecoder {
  std::string prefix;
  bool cleanup = true;
};
struct MetaspaceDecoder {
  CodePoint replacement = 0x2581;
  bool drops_first = true;  // removes the replacement character at the start of the first token
};
// Converts tokens such as "<0x41>" to bytes. If a sequence of such bytes is not valid UTF-8, each of its
// bytes becomes one U+FFFD.
struct ByteFallbackDecoder {};
struct FuseDecoder {};
struct StripDecoder {
  CodePoint content = ' ';
  std::size_t at_start = 0, at_end = 0;  // maximum number of characters to remove at each end
};
using DecoderStep = std::variant<ByteLevelDecoder, WordPieceDecoder, MetaspaceDecoder, ByteFallbackDecoder,
                                 FuseDecoder, StripDecoder, Replace>;

class TokenDecoder {
 public:
  void add(DecoderStep step) { steps_.push_back(std::move(step)); }
  // Without any steps, the tokens are joined by spaces.
  std::string decode(std::vector<std::string> tokens) const;

 private:
  std::vector<DecoderStep> steps_;
};

}  // namespace optimus
