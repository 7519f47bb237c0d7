// See added_tokens.h.
#include "tokenizer/added_tokens.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {

bool AddedTokenMatcher::add(const AddedToken& token) {
  ensure(token.pattern.size() <= kMaxPatternBytes, "an added token is too long: {} bytes",
         token.pattern.size());
  if (token.pattern.empty()) return true;  // such a token can be decoded but never matches
  if (!patterns_.insert(token.pattern, static_cast<std::int32_t>(tokens_.size()))) return false;
  tokens_.push_back(token);
  first_bytes_.set(static_cast<unsigned char>(token.pattern[0]));
  only_first_byte_ = first_bytes_.count() == 1 ? std::optional(token.pattern[0]) : std::nullopt;
  return true;
}

std::optional<AddedTokenMatcher::TokenMatch> AddedTokenMatcher::find(std::string_view text,
                                                                     std::size_t from) const {
  if (tokens_.empty()) return std::nullopt;
  for (; from < text.size(); ++from) {
    if (only_first_byte_) {
      from = text.find(*only_first_byte_, from);
      if (from == std::string_view::npos) break;
    } else if (!first_bytes_[static_cast<unsigned char>(text[from])]) {
      continue;
    }
    if (const std::optional<ByteTrie::Match> match = patterns_.longest(text.substr(from)))
      return TokenMatch{from, from + match->size, &tokens_[static_cast<std::size_t>(match->value)]};
  }
  return std::nullopt;
}

bool AddedTokenMatcher::is_whole_word(std::string_view text, const TokenMatch& match,
                                      const CharClasses& classes) const {
  const std::string_view before = text.substr(0, match.begin), after = text.substr(match.end);
  return (before.empty() || !classes.is(decode_last_char(before).code_point, kWord)) &&
         (after.empty() || !classes.is(decode_char(after.data()).code_point, kWord));
}

std::size_t trailing_spaces_size(std::string_view text, const CharClasses& classes) {
  const std::size_t size = text.size();
  while (!text.empty()) {
    const DecodedChar last = decode_last_char(text);
    if (!classes.is(last.code_point, kSpace)) break;
    text.remove_suffix(static_cast<std::size_t>(last.size));
  }
  return size - text.size();
}

std::size_t leading_spaces_size(std::string_view text, const CharClasses& classes) {
  std::size_t size = 0;
  while (size < text.size()) {
    const DecodedChar next = decode_char(text.data() + size);
    if (!classes.is(next.code_point, kSpace)) break;
    size += static_cast<std::size_t>(next.size);
  }
  return size;
}

}  // namespace optimus
