// Byte-pair encoding: the symbols of a word are merged pair by pair, always the pair that was learned first.
//
// Symbols are bytes (GPT-2, Llama 3, Qwen 2) or characters (Llama 2, Mistral), the latter with a token for
// each byte of a character that the vocabulary does not have. Immutable after construction.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/vocabulary.h"

namespace optimus {

// Pairs of ids -> rank (the place in the list of merges) -> the id of both together.
class MergeTable {
 public:
  static constexpr std::uint32_t kNone = (1 << 20) - 1;
  static constexpr std::size_t kMostMerges = kNone;

  void reserve(std::size_t num_merges);
  // The rank is the number of merges before it. A pair that comes again gets the later rank.
  void add(TokenId left, TokenId right, TokenId merged);

  // The rank, or kNone.
  std::uint32_t find(TokenId left, TokenId right) const {
    const std::uint64_t key = key_of(left, right), hash = key * kHash;
    if (!may_have(hash)) return kNone;
    for (std::size_t slot = hash >> shift_;; slot = (slot + 1) & (slots_.size() - 1)) {
      const std::uint64_t found = slots_[slot];
      if ((found >> 20) == key) return static_cast<std::uint32_t>(found) & kNone;
      if (found == kEmpty) return kNone;
    }
  }
  TokenId merged(std::uint32_t rank) const { return merged_[rank]; }

  // Calls on_pair(left, right), in no order.
  template <typename OnPair>
  void for_each_pair(OnPair&& on_pair) const {
    for (const std::uint64_t slot : slots_)
      if (slot != kEmpty)
        on_pair(static_cast<TokenId>(slot >> 42), static_cast<TokenId>((slot >> 20) & ((1 << 22) - 1)));
  }

 private:
  static constexpr std::uint64_t kEmpty = UINT64_MAX, kHash = 0x9E3779B97F4A7C15ULL;
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return (static_cast<std::uint64_t>(left) << 22) | static_cast<std::uint64_t>(right);
  }
  // Most pairs have no merge; this small set of hashes tells so without a cache miss, 15 times out of 16.
  bool may_have(std::uint64_t hash) const {
    const std::uint64_t bit = hash >> (shift_ - 3);
    return ((present_[bit / 64] >> (bit % 64)) & 1) != 0;
  }
  void put(std::uint64_t key, std::uint32_t rank);

  // 22 bits of left id, 22 of right id, 20 of rank: one word a merge, because cache misses here are what
  // encoding waits for. Open addressing, a power of two.
  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(16, kEmpty);
  int shift_ = 60;
  std::vector<std::uint64_t> present_ = std::vector<std::uint64_t>(2);  // 8 bits a slot
  std::vector<TokenId> merged_;                                         // by rank
};

struct BpeOptions {
  bool is_byte_level = false;  // the vocabulary is written in the byte-level alphabet; words are raw bytes
  bool ignore_merges = false;  // a word that is a token is taken whole
  bool byte_fallback = false;  // unknown characters become "<0x..>" tokens
  bool fuse_unknown = false;   // neighbouring unknown characters become one unknown token
  std::optional<TokenId> unknown = std::nullopt;
};

// One per thread.
struct BpeScratch {
  std::vector<TokenId> ids;
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint32_t> next, previous;
  std::vector<std::uint64_t> heap;
};

class Bpe {
 public:
  Bpe(const Vocabulary& vocabulary, MergeTable merges, const BpeOptions& options);

  // Appends the ids of one word. Time is O(n log n) in the word's length.
  void encode(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;

  // Characters only: the end of a front part of `word` that can be encoded by itself because no merge ever
  // reaches over its end. Cuts a text without spaces between words into words.
  std::size_t independent_front(std::string_view word) const;
  // Whether every byte has a token, so that no text is unknown.
  bool has_all_bytes() const { return has_all_bytes_; }

 private:
  void find_byte_ids(const Vocabulary& vocabulary);
  void find_words(const Vocabulary& vocabulary);
  void find_joints(const Vocabulary& vocabulary);
  void start_with_bytes(std::string_view word, std::vector<TokenId>& ids) const;
  void start_with_characters(std::string_view word, std::vector<TokenId>& ids) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;
  static std::size_t joint_of(char32_t left, char32_t right);

  MergeTable merges_;
  BpeOptions options_;
  Vocabulary words_;                     // whole words and characters to look up; raw bytes when byte-level
  std::array<TokenId, 256> byte_ids_{};  // -1: not in the vocabulary
  bool has_all_bytes_ = false;
  // Pairs of characters that some merge joins, as a set of hashes: false alarms are harmless.
  std::vector<bool> joints_;
};

}  // namespace optimus
