// See word_cache.h.
#include "tokenizer/word_cache.h"

#include <bit>
#include <cstring>

#include "tokenizer/hash_bytes.h"

namespace optimus {
namespace {

constexpr int kBucketBits = 15;            // 2^15 buckets x 2 entries x 32 bytes = 2 MiB
constexpr std::size_t kNumLong = 1 << 14;  // a power of two

static_assert(std::endian::native == std::endian::little, "short_key() reads bytes as little-endian numbers");

}  // namespace

WordCache::WordCache() : short_entries_(std::size_t{2} << kBucketBits), long_entries_(kNumLong) {}

WordCache::ShortKey WordCache::short_key(std::string_view word, const char* readable_end) {
  ShortKey key{0, 0};
  if (readable_end - word.data() >= 16) {
    std::memcpy(&key.low, word.data(), 8);
    std::memcpy(&key.high, word.data() + 8, 8);
    const std::size_t bits = word.size() * 8;
    if (bits < 64) {
      key.low &= (std::uint64_t{1} << bits) - 1;
      key.high = 0;
    } else {
      key.high &= (std::uint64_t{1} << (bits - 64)) - 1;  // bits - 64 <= 56
    }
  } else {
    char bytes[16] = {};
    std::memcpy(bytes, word.data(), word.size());
    std::memcpy(&key.low, bytes, 8);
    std::memcpy(&key.high, bytes + 8, 8);
  }
  key.high |= static_cast<std::uint64_t>(word.size()) << 56;
  return key;
}

std::size_t WordCache::bucket_of(ShortKey key) {
  const std::uint64_t hash = (key.low ^ (key.high * 0xD6E8FEB86659FD93ULL)) * 0x9E3779B97F4A7C15ULL;
  return static_cast<std::size_t>((hash ^ (hash << 29)) >> (64 - kBucketBits)) * 2;
}

bool WordCache::find(std::string_view word, const char* readable_end, std::vector<TokenId>& out) const {
  if (word.size() > kShortBytes) return find_long(word, out);
  const ShortKey key = short_key(word, readable_end);
  const ShortEntry* entry = &short_entries_[bucket_of(key)];
  if (entry->low != key.low || entry->high != key.high) {
    ++entry;
    if (entry->low != key.low || entry->high != key.high) return find_long(word, out);
  }
  for (std::uint32_t i = 0; i < entry->num_ids; ++i) out.push_back(entry->ids[i]);
  return true;
}

void WordCache::insert(std::string_view word, std::span<const TokenId> ids) {
  if (word.empty() || word.size() > kLongBytes) return;
  if (word.size() > kShortBytes || ids.size() > kShortIds) return insert_long(word, ids);
  const ShortKey key = short_key(word, word.data() + word.size());
  ShortEntry* const bucket = &short_entries_[bucket_of(key)];
  bucket[1] = bucket[0];  // evicts the older of the two entries
  bucket[0] = {key.low, key.high, {}, static_cast<std::uint32_t>(ids.size())};
  std::copy(ids.begin(), ids.end(), bucket[0].ids.begin());
}

// Returns the slot that contains the word, or the free slot into which it can be inserted.
std::size_t WordCache::long_slot(std::string_view word, std::uint64_t hash) const {
  for (std::size_t slot = hash % kNumLong;; slot = (slot + 1) % kNumLong) {
    const LongEntry& entry = long_entries_[slot];
    if (entry.key_size == 0) return slot;
    if (entry.hash == hash && std::string_view(long_keys_).substr(entry.key_begin, entry.key_size) == word)
      return slot;
  }
}

bool WordCache::find_long(std::string_view word, std::vector<TokenId>& out) const {
  if (word.size() > kLongBytes) return false;
  const LongEntry& entry = long_entries_[long_slot(word, hash_bytes(word))];
  if (entry.key_size == 0) return false;
  const auto begin = long_ids_.begin() + entry.ids_begin;
  out.insert(out.end(), begin, begin + entry.num_ids);
  return true;
}

void WordCache::insert_long(std::string_view word, std::span<const TokenId> ids) {
  if (num_long_ * 2 > kNumLong || long_keys_.size() + word.size() > kLongStore) {
    long_entries_.assign(kNumLong, {});
    long_keys_.clear();
    long_ids_.clear();
    num_long_ = 0;
  }
  const std::uint64_t hash = hash_bytes(word);
  LongEntry& entry = long_entries_[long_slot(word, hash)];
  if (entry.key_size != 0) return;
  // A word has at most as many ids as bytes, so num_ids does not overflow.
  entry = {hash, static_cast<std::uint32_t>(long_keys_.size()), static_cast<std::uint32_t>(long_ids_.size()),
           static_cast<std::uint16_t>(word.size()), static_cast<std::uint16_t>(ids.size())};
  long_keys_ += word;
  long_ids_.insert(long_ids_.end(), ids.begin(), ids.end());
  ++num_long_;
}

}  // namespace optimus
