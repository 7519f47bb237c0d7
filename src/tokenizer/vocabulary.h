// The tokens of a model and their ids, both ways. Filled while loading, then read by any number of threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/token_id.h"

namespace optimus {

// Larger ids are refused: tables are indexed by id, and a file of ten bytes must not ask for gigabytes. The
// pairs of BPE merges are packed into 2 x 22 bits (see bpe.h).
inline constexpr TokenId kLargestTokenId = (1 << 22) - 2;

class Vocabulary {
 public:
  enum class Added { kYes, kTokenTwice, kIdTwice };

  // id: 0 … kLargestTokenId. Nothing is changed unless the answer is kYes.
  Added add(std::string_view token, TokenId id);
  void reserve(std::size_t num_tokens);

  std::optional<TokenId> id_of(std::string_view token) const;
  bool has(TokenId id) const;
  // "" for an id that is not there. Valid until the next add().
  std::string_view token_of(TokenId id) const;

  std::size_t num_tokens() const { return num_tokens_; }
  // One more than the largest id.
  TokenId end() const { return static_cast<TokenId>(by_id_.size()); }

 private:
  struct Place {
    std::uint32_t begin = 0, size = kAbsent;
  };
  static constexpr std::uint32_t kAbsent = UINT32_MAX;

  std::size_t slot_of(std::string_view token) const;
  void grow(std::size_t num_slots);

  std::string letters_;                                        // all tokens, one after the other
  std::vector<Place> by_id_;                                   // where in letters_
  std::vector<TokenId> slots_ = std::vector<TokenId>(16, -1);  // open addressing; a power of two
  std::size_t num_tokens_ = 0;
};

}  // namespace optimus
