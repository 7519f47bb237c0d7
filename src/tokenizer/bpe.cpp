// See bpe.h.
#include "tokenizer/bpe.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "base/error.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/hash_bytes.h"
#include "tokenizer/unicode.h"

namespace optimus {
namespace {

// For words of up to this number of symbols, scanning all pairs after each merge is faster than a heap.
constexpr std::size_t kShortWord = 64;
constexpr std::size_t kNumPairSlots = 1 << 18;
constexpr std::uint32_t kNoNeighbour = UINT32_MAX;

// Returns the index of the first occurrence of the smallest number. Four independent comparisons at a time
// avoid the dependency chain of std::min_element, which would take half of the encoding time for text
// without spaces.
std::size_t index_of_smallest(const std::vector<std::uint32_t>& numbers) {
  std::array<std::uint32_t, 4> smallest;
  smallest.fill(UINT32_MAX);
  std::size_t i = 0;
  for (; i + 4 <= numbers.size(); i += 4)
    for (std::size_t lane = 0; lane < 4; ++lane) smallest[lane] = std::min(smallest[lane], numbers[i + lane]);
  for (; i < numbers.size(); ++i) smallest[0] = std::min(smallest[0], numbers[i]);
  const std::uint32_t best = std::min(std::min(smallest[0], smallest[1]), std::min(smallest[2], smallest[3]));
  return static_cast<std::size_t>(std::find(numbers.begin(), numbers.end(), best) - numbers.begin());
}

}  // namespace

void MergeTable::insert(std::uint64_t key, std::uint32_t rank) {
  std::size_t slot = (key * kHashMultiplier) >> shift_;
  while (slots_[slot] != kEmpty && (slots_[slot] >> 20) != key) slot = (slot + 1) & (slots_.size() - 1);
  slots_[slot] = (key << 20) | rank;
  const std::uint64_t bit = (key * kHashMultiplier) >> (shift_ - 3);
  present_[bit / 64] |= std::uint64_t{1} << (bit % 64);
}

void MergeTable::reserve(std::size_t num_merges) {
  const std::size_t num_slots = std::bit_ceil(std::max<std::size_t>(16, num_merges + num_merges / 2));
  if (num_slots <= slots_.size()) return;
  const std::vector<std::uint64_t> old = std::exchange(slots_, std::vector<std::uint64_t>(num_slots, kEmpty));
  shift_ = 64 - std::countr_zero(num_slots);
  present_.assign(num_slots / 8, 0);
  for (const std::uint64_t slot : old)
    if (slot != kEmpty) insert(slot >> 20, static_cast<std::uint32_t>(slot) & kNone);
}

void MergeTable::add(TokenId left, TokenId right, TokenId merged) {
  ensure(merged_.size() < kMaxMerges, "expected at most {} merges", kMaxMerges);
  if ((merged_.size() + 1) * 4 > slots_.size() * 3) reserve(slots_.size());
  insert(key_of(left, right), static_cast<std::uint32_t>(merged_.size()));
  merged_.push_back(merged);
}

Bpe::Bpe(const Vocabulary& vocabulary, MergeTable merges, const BpeOptions& options)
    : merges_(std::move(merges)), options_(options) {
  find_byte_ids(vocabulary);
  find_words(vocabulary);
  find_mergeable_pairs(vocabulary);
}

void Bpe::find_byte_ids(const Vocabulary& vocabulary) {
  static constexpr auto kAlphabet = byte_alphabet();
  for (unsigned byte = 0; byte < 256; ++byte) {
    std::string token;
    if (options_.is_byte_level)
      append_utf8(kAlphabet[byte], token);
    else
      token = fmt::format("<0x{:02X}>", byte);
    byte_ids_[byte] = vocabulary.id_of(token).value_or(-1);
  }
  has_all_bytes_ = std::all_of(byte_ids_.begin(), byte_ids_.end(), [](TokenId id) { return id >= 0; });
}

void Bpe::find_words(const Vocabulary& vocabulary) {
  if (options_.is_byte_level && !options_.ignore_merges) return;
  word_ids_.reserve(vocabulary.num_tokens());
  for (TokenId id = 0; id < vocabulary.end(); ++id) {
    if (!vocabulary.has_token(id)) continue;
    if (!options_.is_byte_level)
      word_ids_.add(vocabulary.token_of(id), id);
    else if (const std::optional<std::string> bytes = bytes_of_token(vocabulary.token_of(id)))
      word_ids_.add(*bytes, id);
  }
}

std::size_t Bpe::pair_slot(char32_t left, char32_t right) {
  return mix_bits((static_cast<std::uint64_t>(left) << 32) | right) % kNumPairSlots;
}

// Fills mergeable_pairs_, unless the text of a symbol may differ from the corresponding text of the word.
void Bpe::find_mergeable_pairs(const Vocabulary& vocabulary) {
  if (options_.is_byte_level || options_.ignore_merges || !options_.byte_fallback || !has_all_bytes_) return;
  std::vector<bool> is_byte(static_cast<std::size_t>(vocabulary.end())), mergeable(kNumPairSlots);
  for (const TokenId id : byte_ids_) is_byte[static_cast<std::size_t>(id)] = true;
  bool is_safe = true;
  merges_.for_each_pair([&](TokenId left, TokenId right) {
    const std::string_view left_text = vocabulary.token_of(left), right_text = vocabulary.token_of(right);
    if (is_byte[static_cast<std::size_t>(left)] || is_byte[static_cast<std::size_t>(right)] ||
        left_text.empty() || right_text.empty())
      is_safe = false;
    else
      mergeable[pair_slot(decode_last_char(left_text).code_point,
                          decode_char(right_text.data()).code_point)] = true;
  });
  if (is_safe) mergeable_pairs_ = std::move(mergeable);
}

std::size_t Bpe::independent_prefix(std::string_view word) const {
  if (mergeable_pairs_.empty()) return word.size();
  DecodedChar left = decode_char(word.data());
  std::size_t at = static_cast<std::size_t>(left.size);
  while (at < word.size()) {
    const DecodedChar right = decode_char(word.data() + at);
    if (!mergeable_pairs_[pair_slot(left.code_point, right.code_point)]) break;
    left = right;
    at += static_cast<std::size_t>(right.size);
  }
  return at;
}

void Bpe::add_byte_symbols(std::string_view word, std::vector<TokenId>& ids) const {
  bool was_unknown = false;
  for (const char c : word) {
    const TokenId id = byte_ids_[static_cast<unsigned char>(c)];
    const bool is_unknown = id < 0;
    if (!is_unknown)
      ids.push_back(id);
    else if (options_.unknown_id && !(was_unknown && options_.fuse_unknown))
      ids.push_back(*options_.unknown_id);
    was_unknown = is_unknown;
  }
}

void Bpe::add_character_symbols(std::string_view word, std::vector<TokenId>& ids) const {
  // The unknown token is emitted just before the next known character, after any byte tokens in between, as
  // in the tokenizers library.
  bool has_unknown = false;
  const auto put_unknown = [&] {
    if (std::exchange(has_unknown, false)) ids.push_back(*options_.unknown_id);
  };
  const auto id_of_byte = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)]; };
  for (std::size_t at = 0; at < word.size();) {
    const auto size = static_cast<std::size_t>(decode_char(word.data() + at).size);
    const std::string_view character = word.substr(at, size);
    at += size;
    if (const std::optional<TokenId> id = word_ids_.id_of(character)) {
      put_unknown();
      ids.push_back(*id);
    } else if (options_.byte_fallback &&
               std::all_of(character.begin(), character.end(), [&](char c) { return id_of_byte(c) >= 0; })) {
      for (const char c : character) ids.push_back(id_of_byte(c));
    } else if (options_.unknown_id) {
      if (!options_.fuse_unknown) put_unknown();
      has_unknown = true;
    }
  }
  put_unknown();
}

// Repeatedly merges the leftmost pair of lowest rank until no pair can be merged.
void Bpe::merge_short(BpeScratch& scratch) const {
  std::vector<TokenId>& ids = scratch.ids;
  // Indexed by symbol: the rank of the pair that the symbol forms with the next one.
  std::vector<std::uint32_t>& ranks = scratch.ranks;
  ranks.clear();
  for (std::size_t i = 0; i + 1 < ids.size(); ++i) ranks.push_back(merges_.find(ids[i], ids[i + 1]));
  while (!ranks.empty()) {
    const std::size_t i = index_of_smallest(ranks);
    if (ranks[i] == MergeTable::kNone) break;
    ids[i] = merges_.merged_id(ranks[i]);
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    ranks.erase(ranks.begin() + static_cast<std::ptrdiff_t>(i));
    if (i > 0) ranks[i - 1] = merges_.find(ids[i - 1], ids[i]);
    if (i + 1 < ids.size()) ranks[i] = merges_.find(ids[i], ids[i + 1]);
  }
}

// The same algorithm as merge_short(), with a heap of (rank, position) over a linked list of symbols.
void Bpe::merge_long(BpeScratch& scratch) const {
  std::vector<TokenId>& ids = scratch.ids;
  const auto size = static_cast<std::uint32_t>(ids.size());
  scratch.next.resize(size);
  scratch.previous.resize(size);
  scratch.heap.clear();
  const auto push = [&](std::uint32_t at, std::uint32_t rank) {
    if (rank == MergeTable::kNone) return;
    scratch.heap.push_back((static_cast<std::uint64_t>(rank) << 32) | at);
    std::push_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
  };
  for (std::uint32_t i = 0; i < size; ++i) {
    scratch.next[i] = i + 1 < size ? i + 1 : kNoNeighbour;
    scratch.previous[i] = i > 0 ? i - 1 : kNoNeighbour;
    if (i + 1 < size) push(i, merges_.find(ids[i], ids[i + 1]));
  }
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), std::greater<>());
    const auto rank = static_cast<std::uint32_t>(scratch.heap.back() >> 32);
    const auto left = static_cast<std::uint32_t>(scratch.heap.back());
    scratch.heap.pop_back();
    const std::uint32_t right = ids[left] < 0 ? kNoNeighbour : scratch.next[left];
    // The entry is stale if one of the two symbols has been merged since the entry was pushed.
    if (right == kNoNeighbour || merges_.find(ids[left], ids[right]) != rank) continue;
    ids[left] = merges_.merged_id(rank);
    ids[right] = -1;
    const std::uint32_t after = scratch.next[right], before = scratch.previous[left];
    scratch.next[left] = after;
    if (after != kNoNeighbour) {
      scratch.previous[after] = left;
      push(left, merges_.find(ids[left], ids[after]));
    }
    if (before != kNoNeighbour) push(before, merges_.find(ids[before], ids[left]));
  }
  std::erase(ids, -1);
}

void Bpe::encode(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const {
  if (options_.ignore_merges)
    if (const std::optional<TokenId> whole = word_ids_.id_of(word)) return out.push_back(*whole);
  scratch.ids.clear();
  if (options_.is_byte_level)
    add_byte_symbols(word, scratch.ids);
  else
    add_character_symbols(word, scratch.ids);
  if (scratch.ids.size() <= kShortWord)
    merge_short(scratch);
  else
    merge_long(scratch);
  out.insert(out.end(), scratch.ids.begin(), scratch.ids.end());
}

}  // namespace optimus
