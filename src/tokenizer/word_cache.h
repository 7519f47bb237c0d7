// A cache of the ids of recently encoded words. It pays off because words repeat often and a lookup is ten
// times as fast as merging. Its size is limited to about 4 MiB. Each thread needs its own cache.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/token_id.h"

namespace optimus {

class WordCache {
 public:
  WordCache();

  // If the word is cached, appends its ids to `out` and returns true. `readable_end` is the end of the
  // readable memory around the word. If at least 16 bytes are readable, a short word is loaded with two
  // 8-byte reads.
  bool find(std::string_view word, const char* readable_end, std::vector<TokenId>& out) const;
  void insert(std::string_view word, std::span<const TokenId> ids);

 private:
  // Entries for most words, which have up to 15 bytes and 3 ids. A bucket has two entries in one cache line.
  static constexpr std::size_t kShortBytes = 15, kShortIds = 3;
  struct alignas(32) ShortEntry {
    std::uint64_t low = 0, high = 0;  // the bytes of the word; the last byte is its length
    std::array<TokenId, kShortIds> ids{};
    std::uint32_t num_ids = 0;
  };
  struct ShortKey {
    std::uint64_t low, high;
  };
  // Entries for all other words. Keys and ids are stored in two buffers, which are cleared when they are
  // full.
  static constexpr std::size_t kLongBytes = 256, kLongStore = 1 << 20;
  struct LongEntry {
    std::uint64_t hash = 0;
    std::uint32_t key_begin = 0, ids_begin = 0;
    std::uint16_t key_size = 0, num_ids = 0;
  };

  static ShortKey short_key(std::string_view word, const char* readable_end);
  static std::size_t bucket_of(ShortKey key);
  std::size_t long_slot(std::string_view word, std::uint64_t hash) const;
  bool find_long(std::string_view word, std::vector<TokenId>& out) const;
  void insert_long(std::string_view word, std::span<const TokenId> ids);

  std::vector<ShortEntry> short_entries_;
  std::vector<LongEntry> long_entries_;
  std::size_t num_long_ = 0;
  std::string long_keys_;
  std::vector<TokenId> long_ids_;
};

}  // namespace optimus
