// A two-way map between the tokens of a model and their ids. It is filled while the tokenizer is loaded.
// After that, any number of threads may read it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/token_id.h"

namespace optimus {

// Larger ids are rejected, because tables are indexed by id and a tiny file must not cause an allocation of
// gigabytes. Moreover, ids in BPE merges are packed into 22 bits (see bpe.h).
inline constexpr TokenId kMaxTokenId = (1 << 22) - 2;

class Vocabulary {
 public:
  enum class AddResult { kAdded, kDuplicateToken, kDuplicateId };

  // Adds a token. `id` must be in the range 0 to kMaxTokenId. Has no effect unless the result is kAdded.
  AddResult add(std::string_view token, TokenId id);
  void reserve(std::size_t num_tokens);

  std::optional<TokenId> id_of(std::string_view token) const;
  bool has_token(TokenId id) const;
  // Returns "" for an id that is not in the vocabulary. The result is valid until the next add().
  std::string_view token_of(TokenId id) const;

  std::size_t num_tokens() const { return num_tokens_; }
  // The largest id plus one.
  TokenId end() const { return static_cast<TokenId>(by_id_.size()); }

 private:
  struct Place {
    std::uint32_t begin = 0, size = kAbsent;
  };
  static constexpr std::uint32_t kAbsent = UINT32_MAX;

  std::size_t slot_of(std::string_view token) const;
  void grow(std::size_t num_slots);

  std::string characters_;                                     // the concatenation of all tokens
  std::vector<Place> by_id_;                                   // position in characters_
  std::vector<TokenId> slots_ = std::vector<TokenId>(16, -1);  // open addressing; the size is a power of two
  std::size_t num_tokens_ = 0;
};

}  // namespace optimus
