// Added tokens: tokens that were added to a vocabulary explicitly ("<|endoftext|>", "[MASK]"). They are
// matched in the raw text before any other processing. Tokens marked `normalized` are matched after
// normalization instead.
#pragma once

#include <algorithm>
#include <bitset>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/byte_trie.h"
#include "tokenizer/token_id.h"
#include "tokenizer/unicode.h"

namespace optimus {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  std::string pattern;       // the text to match: `content`, normalized if `normalized` is set
  bool single_word = false;  // matches only whole words
  bool lstrip = false;       // the match includes the spaces on its left
  bool rstrip = false;       // the match includes the spaces on its right
  bool normalized = true;
  bool special = false;
};

// Finds the leftmost match of any added token, and the longest match at that position. Immutable after the
// last add().
class AddedTokenMatcher {
 public:
  // The maximum length of a pattern in bytes. The limit keeps matching linear in the length of the text.
  static constexpr std::size_t kMaxPatternBytes = 1024;

  bool is_empty() const { return tokens_.empty(); }
  // Returns false and has no effect if another token has the same pattern.
  bool add(const AddedToken& token);

  struct Part {
    std::string_view text;
    std::optional<TokenId> id;  // set if the part is an added token
  };
  // Splits `text` into added tokens and the text between them, and calls on_part(Part) from left to right.
  // Text between added tokens is never empty. Parts that are added tokens have no `text`.
  template <typename OnPart>
  void for_each_part(std::string_view text, const CharClasses& classes, OnPart&& on_part) const;

 private:
  struct TokenMatch {
    std::size_t begin, end;
    const AddedToken* token;
  };
  std::optional<TokenMatch> find(std::string_view text, std::size_t from) const;
  bool is_whole_word(std::string_view text, const TokenMatch& match, const CharClasses& classes) const;

  std::vector<AddedToken> tokens_;
  ByteTrie patterns_;  // maps each pattern to its index in tokens_
  std::bitset<256> first_bytes_;
  std::optional<char> only_first_byte_;
};

std::size_t trailing_spaces_size(std::string_view text, const CharClasses& classes);
std::size_t leading_spaces_size(std::string_view text, const CharClasses& classes);

template <typename OnPart>
void AddedTokenMatcher::for_each_part(std::string_view text, const CharClasses& classes,
                                      OnPart&& on_part) const {
  // `spaces_end` is the end of the spaces that the previous rstrip token matched.
  std::size_t covered_end = 0, spaces_end = 0;
  std::optional<TokenMatch> match = find(text, 0);
  for (; match; match = find(text, match->end)) {
    auto [begin, end, token] = *match;
    if (token->single_word && !is_whole_word(text, *match, classes)) continue;
    if (token->lstrip && covered_end < begin)
      begin -= trailing_spaces_size(text.substr(covered_end, begin - covered_end), classes);
    if (token->rstrip) {
      if (end >= spaces_end) spaces_end = end + leading_spaces_size(text.substr(end), classes);
      end = spaces_end;
    }
    if (covered_end < begin) on_part(Part{text.substr(covered_end, begin - covered_end), std::nullopt});
    on_part(Part{{}, token->id});
    covered_end = end;
  }
  if (covered_end < text.size()) on_part(Part{text.substr(covered_end), std::nullopt});
}

}  // namespace optimus
