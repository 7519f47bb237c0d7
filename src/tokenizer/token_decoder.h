// Decoding: converts tokens back to text. A list of steps transforms the texts of the tokens, which are then
// joined.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "tokenizer/normalizer.h"

namespace optimus {

// Converts characters of the byte-level alphabet to bytes; invalid UTF-8 then becomes U+FFFD.
struct ByteLevelDecoder {};
// Removes the prefix and puts a space before all other tokens; `cleanup` removes the spaces before
// punctuation.
struct WordPieceDecoder {
  std::string prefix;
  bool cleanup = true;
};
struct MetaspaceDecoder {
  CodePoint replacement = 0x2581;
  bool drops_first = true;  // removes the replacement character at the start of the first token
};
// Converts "<0x41>" to the byte; each byte that is not valid UTF-8 becomes one U+FFFD.
struct ByteFallbackDecoder {};
struct FuseDecoder {};
struct StripDecoder {
  CodePoint content = ' ';
  std::size_t at_start = 0, at_end = 0;  // maximum numbers of characters to remove
};
using DecoderStep = std::variant<ByteLevelDecoder, WordPieceDecoder, MetaspaceDecoder, ByteFallbackDecoder,
                                 FuseDecoder, StripDecoder, Replace>;

class TokenDecoder {
 public:
  void add(DecoderStep step) { steps_.push_back(std::move(step)); }
  // If no step was added, the tokens are joined by spaces.
  std::string decode(std::vector<std::string> tokens) const;

 private:
  std::vector<DecoderStep> steps_;
};

}  // namespace optimus
