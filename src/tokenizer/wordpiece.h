// WordPiece, BERT's model: a word is cut greedily into the longest tokens that fit, all but the first of
// which carry a prefix ("##"). Immutable after construction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"
#include "tokenizer/vocabulary.h"

namespace optimus {

struct WordPieceOptions {
  TokenId unknown = 0;  // for words that do not fit
  std::string continuing_prefix = "##";
  std::size_t most_characters = 100;  // longer words are unknown
};

class WordPiece {
 public:
  WordPiece(const Vocabulary& vocabulary, const WordPieceOptions& options);
  // Appends the ids of one word of valid UTF-8, in time of its length times the longest token's.
  void encode(std::string_view word, std::vector<TokenId>& out) const;

 private:
  WordPieceOptions options_;
  ByteTrie tokens_;
  ByteTrie::Node continuing_;  // where tokens_ stands after the prefix
};

}  // namespace optimus
