// Byte-pair encoding: repeatedly merges the adjacent pair of symbols that was learned first.
//
// Symbols are bytes (GPT-2, Llama 3, Qwen 2) or characters (Llama 2, Mistral). Character vocabularies may
// have byte tokens for characters that they do not contain. Immutable after construction.
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

// Maps a pair of token ids to its rank (the index in the list of merges), and a rank to the id of the merged
// token.
class MergeTable {
 public:
  static constexpr std::uint32_t kNone = (1 << 20) - 1;
  static constexpr std::size_t kMaxMerges = kNone;

  void reserve(std::size_t num_merges);
  // The rank of a new merge is the number of merges that were added before it. If a pair is added again, the
  // later rank replaces the earlier one.
  void add(TokenId left, TokenId right, TokenId merged);

  // Returns the rank of the pair, or kNone.
  std::uint32_t find(TokenId left, TokenId right) const {
    const std::uint64_t key = key_of(left, right), hash = key * kHashMultiplier;
    if (!may_contain(hash)) return kNone;
    for (std::size_t slot = hash >> shift_;; slot = (slot + 1) & (slots_.size() - 1)) {
      const std::uint64_t found = slots_[slot];
      if ((found >> 20) == key) return static_cast<std::uint32_t>(found) & kNone;
      if (found == kEmpty) return kNone;
    }
  }
  TokenId merged_id(std::uint32_t rank) const { return merged_[rank]; }

  // Calls on_pair(left, right) in unspecified order.
  template <typename OnPair>
  void for_each_pair(OnPair&& on_pair) const {
    for (const std::uint64_t slot : slots_)
      if (slot != kEmpty)
        on_pair(static_cast<TokenId>(slot >> 42), static_cast<TokenId>((slot >> 20) & ((1 << 22) - 1)));
  }

 private:
  static constexpr std::uint64_t kEmpty = UINT64_MAX, kHashMultiplier = 0x9E3779B97F4A7C15ULL;
  static std::uint64_t key_of(TokenId left, TokenId right) {
    return (static_cast<std::uint64_t>(left) << 22) | static_cast<std::uint64_t>(right);
  }
  // A Bloom filter. Most pairs have no merge, and the filter rejects 15 of 16 such pairs without a cache
  // miss.
  bool may_contain(std::uint64_t hash) const {
    const std::uint64_t bit = hash >> (shift_ - 3);
    return ((present_[bit / 64] >> (bit % 64)) & 1) != 0;
  }
  void insert(std::uint64_t key, std::uint32_t rank);

  // Each slot packs the left id (22 bits), the right id (22 bits) and the rank (20 bits) into one word,
  // because cache misses in this table dominate the encoding time. The table uses open addressing, and its
  // size is a power of two.
  std::vector<std::uint64_t> slots_ = std::vector<std::uint64_t>(16, kEmpty);
  int shift_ = 60;
  std::vector<std::uint64_t> present_ =
      std::vector<std::uint64_t>(2);  // bits of the Bloom filter, 8 per slot
  std::vector<TokenId> merged_;       // indexed by rank
};

struct BpeOptions {
  bool is_byte_level = false;  // tokens use the byte-level alphabet, and words are raw bytes
  bool ignore_merges = false;  // a word that is itself a token is not split
  bool byte_fallback = false;  // unknown characters become "<0x..>" tokens
  bool fuse_unknown = false;   // adjacent unknown characters become one unknown token
  std::optional<TokenId> unknown_id = std::nullopt;
};

// Working memory for one thread.
struct BpeScratch {
  std::vector<TokenId> ids;
  std::vector<std::uint32_t> ranks;
  std::vector<std::uint32_t> next, previous;
  std::vector<std::uint64_t> heap;
};

class Bpe {
 public:
  Bpe(const Vocabulary& vocabulary, MergeTable merges, const BpeOptions& options);

  // Appends the ids of one word to `out`. Takes O(n log n) time, where n is the length of the word.
  void encode(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;

  // For character symbols only. Returns the length of a prefix of `word` that can be encoded independently,
  // because no merge crosses its end. With this, text without spaces can be split into words.
  std::size_t independent_prefix(std::string_view word) const;
  // Whether every byte has a token, so that any text can be encoded.
  bool has_all_bytes() const { return has_all_bytes_; }

 private:
  void find_byte_ids(const Vocabulary& vocabulary);
  void find_words(const Vocabulary& vocabulary);
  void find_mergeable_pairs(const Vocabulary& vocabulary);
  void add_byte_symbols(std::string_view word, std::vector<TokenId>& ids) const;
  void add_character_symbols(std::string_view word, std::vector<TokenId>& ids) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;
  static std::size_t pair_slot(char32_t left, char32_t right);

  MergeTable merges_;
  BpeOptions options_;
  Vocabulary word_ids_;                  // words and characters to look up; raw bytes if byte-level
  std::array<TokenId, 256> byte_ids_{};  // indexed by byte; -1 if the vocabulary has no token for it
  bool has_all_bytes_ = false;
  // A set of hashes of the character pairs that a merge may join. False positives are harmless.
  std::vector<bool> mergeable_pairs_;
};

}  // namespace optimus
