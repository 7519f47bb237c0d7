// WordPiece, the model of BERT: a word is split greedily into the longest matching tokens. All tokens but the
// first carry a prefix ("##"). Immutable after construction.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"
#include "tokenizer/vocabulary.h"

namespace optimus {

struct WordPieceOptions {
  TokenId unknown_id = 0;  // for words that cannot be split into tokens
  std::string continuing_prefix = "##";
  std::size_t max_characters = 100;  // longer words are unknown
};

class WordPiece {
 public:
  WordPiece(const Vocabulary& vocabulary, const WordPieceOptions& options);
  // Appends the ids of one word of valid UTF-8 to `out`. The time is at most proportional to the length of
  // the word times the length of the longest token.
  void encode(std::string_view word, std::vector<TokenId>& out) const;

 private:
  WordPieceOptions options_;
  ByteTrie tokens_;
  ByteTrie::Node continuing_;  // the node of tokens_ after the prefix
};

}  // namespace optimus
