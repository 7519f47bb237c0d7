// From tokens back to text: a list of steps over the tokens' texts, which are joined at the end.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "tokenizer/normalizer.h"

namespace optimus {

// Characters of the byte-level alphabet become bytes; what is not UTF-8 then becomes U+FFFD.
struct ByteLevelDecoder {};
// The prefix vanishes, other tokens get a space in front; `cleanup` takes back the spaces before punctuation.
struct WordPieceDecoder {
  std::string prefix;
  bool cleanup = true;
};
struct MetaspaceDecoder {
  CodePoint replacement = 0x2581;
  bool drops_first = true;  // the replacement in front of the first token
};
// "<0x41>" becomes the byte; bytes that are not UTF-8 become a U+FFFD each.
struct ByteFallbackDecoder {};
struct FuseDecoder {};
struct StripDecoder {
  CodePoint content = ' ';
  std::size_t at_start = 0, at_end = 0;  // how many at most
};
using DecoderStep = std::variant<ByteLevelDecoder, WordPieceDecoder, MetaspaceDecoder, ByteFallbackDecoder,
                                 FuseDecoder, StripDecoder, Replace>;

class TokenDecoder {
 public:
  void add(DecoderStep step) { steps_.push_back(std::move(step)); }
  // Without steps, tokens are joined by spaces.
  std::string decode(std::vector<std::string> tokens) const;

 private:
  std::vector<DecoderStep> steps_;
};

}  // namespace optimus
