// WordPiece, the tokenization model of BERT. It splits a word greedily into the longest matching tokens. All
// tokens except the first have a prefix ("##"). Immutable after construction.
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
  std::size_t max_characters = 100;  // longer words become the unknown token
};

class WordPiece {
 public:
  WordPiece(const Vocabulary& vocabulary, const WordPieceOptions& options);
  // Appends the ids of one word of valid UTF-8 to `out`. Runs in O(n * m) time for
  // a word of n bytes and a longest token of m bytes.
  void encode(std::string_view word, std::vector<TokenId>& out) const;

 private:
  WordPieceOptions options_;
  ByteTrie tokens_;
  ByteTrie::Node continuing_;  // the node of tokens_ that the prefix leads to
};

}  // namespace optimus
