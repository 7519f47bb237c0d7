// See wordpiece.h.
#include "tokenizer/wordpiece.h"

#include <algorithm>

namespace optimus {

WordPiece::WordPiece(const Vocabulary& vocabulary, const WordPieceOptions& options) : options_(options) {
  for (TokenId id = 0; id < vocabulary.end(); ++id)
    if (vocabulary.has_token(id)) tokens_.insert(vocabulary.token_of(id), id);
  continuing_ = tokens_.walk(options.continuing_prefix);
}

void WordPiece::encode(std::string_view word, std::vector<TokenId>& out) const {
  const auto num_characters = static_cast<std::size_t>(std::count_if(
      word.begin(), word.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
  if (num_characters > options_.max_characters) return out.push_back(options_.unknown_id);
  const std::size_t num_before = out.size();
  for (ByteTrie::Node from = ByteTrie::kRoot; !word.empty(); from = continuing_) {
    const std::optional<ByteTrie::Match> match =
        from == ByteTrie::kNoNode ? std::nullopt : tokens_.longest(word, from);
    if (!match) {
      out.resize(num_before);
      return out.push_back(options_.unknown_id);
    }
    out.push_back(match->value);
    word.remove_prefix(match->size);
  }
}

}  // namespace optimus
