// See vocabulary.h.
#include "tokenizer/vocabulary.h"

#include <bit>

#include "base/error.h"
#include "tokenizer/hash_bytes.h"

namespace optimus {

// Returns the slot that contains the token, or the free slot into which it can be inserted.
std::size_t Vocabulary::slot_of(std::string_view token) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t slot = hash_bytes(token) & mask;; slot = (slot + 1) & mask)
    if (slots_[slot] < 0 || token_of(slots_[slot]) == token) return slot;
}

void Vocabulary::grow(std::size_t num_slots) {
  slots_.assign(num_slots, -1);
  for (TokenId id = 0; id < end(); ++id)
    if (has_token(id)) slots_[slot_of(token_of(id))] = id;
}

void Vocabulary::reserve(std::size_t num_tokens) {
  by_id_.reserve(num_tokens);
  const std::size_t num_slots = std::bit_ceil(num_tokens * 2 + 2);
  if (num_slots > slots_.size()) grow(num_slots);
}

Vocabulary::AddResult Vocabulary::add(std::string_view token, TokenId id) {
  ensure(id >= 0 && id <= kMaxTokenId, "token id {} is out of range", id);
  ensure(characters_.size() + token.size() < kAbsent, "the vocabulary exceeds 4 GiB");
  const std::size_t slot = slot_of(token);
  if (slots_[slot] >= 0) return AddResult::kDuplicateToken;
  if (has_token(id)) return AddResult::kDuplicateId;
  if (id >= end()) by_id_.resize(static_cast<std::size_t>(id) + 1);
  by_id_[static_cast<std::size_t>(id)] = {static_cast<std::uint32_t>(characters_.size()),
                                          static_cast<std::uint32_t>(token.size())};
  characters_ += token;
  slots_[slot] = id;
  if (++num_tokens_ * 2 > slots_.size()) grow(slots_.size() * 2);
  return AddResult::kAdded;
}

std::optional<TokenId> Vocabulary::id_of(std::string_view token) const {
  const TokenId id = slots_[slot_of(token)];
  return id < 0 ? std::nullopt : std::optional(id);
}

bool Vocabulary::has_token(TokenId id) const {
  return id >= 0 && id < end() && by_id_[static_cast<std::size_t>(id)].size != kAbsent;
}

std::string_view Vocabulary::token_of(TokenId id) const {
  if (!has_token(id)) return {};
  const Place place = by_id_[static_cast<std::size_t>(id)];
  return std::string_view(characters_).substr(place.begin, place.size);
}

}  // namespace optimus
