// Philox4x32-10 over arrays of blocks. base/random.cpp has the scalar implementation.
#include "kernels/host_dropout.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/attention_dropout.h"

namespace optimus {
namespace {

// number of blocks computed at a time: their words fit into the L1 cache
constexpr std::size_t kBlocks = 64;
using BlockWords = std::array<std::uint32_t, 4 * kBlocks>;

// Computes the words of `count` blocks from `first`. `count` is a multiple of the vector length and at most
// kBlocks.
void fill_blocks(RandomKey key, std::uint64_t first, std::size_t count, BlockWords& out) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  // separate arrays, so that the loop below uses a single word size
  std::array<std::uint32_t, kBlocks> low, high;
  for (std::size_t block = 0; block < count; ++block) {
    low[block] = static_cast<std::uint32_t>(first + block);
    high[block] = static_cast<std::uint32_t>((first + block) >> 32);
  }
#pragma omp simd
  for (std::size_t block = 0; block < count; ++block) {
    std::uint32_t a = low[block], b = high[block], c = 0, d = 0;
    std::uint32_t key0 = static_cast<std::uint32_t>(key.value),
                  key1 = static_cast<std::uint32_t>(key.value >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t left = kMultiplier0 * a, right = kMultiplier1 * c;
      a = static_cast<std::uint32_t>(right >> 32) ^ b ^ key0, b = static_cast<std::uint32_t>(right);
      c = static_cast<std::uint32_t>(left >> 32) ^ d ^ key1, d = static_cast<std::uint32_t>(left);
      key0 += kWeyl0, key1 += kWeyl1;
    }
    out[4 * block] = a, out[4 * block + 1] = b, out[4 * block + 2] = c, out[4 * block + 3] = d;
  }
}

// The words of all lanes of a tile of attention scores.
struct TileWords {
  std::array<std::array<std::uint32_t, kDropoutLanes>, 4> at;
};
void fill_tile(RandomKey key, std::uint32_t row, std::uint32_t column, TileWords& words) {
#pragma omp simd
  for (std::size_t lane = 0; lane < kDropoutLanes; ++lane) {
    const DropoutWords of_lane = dropout_words(key.value, row, column, static_cast<std::uint32_t>(lane));
    for (std::size_t word = 0; word < 4; ++word) words.at[word][lane] = of_lane.at[word];
  }
}

// 1 for each retained score of row i of a tile.
using TileRow = std::array<std::uint8_t, kDropoutTileKeys>;
TileRow retained_row(const TileWords& words, std::size_t i, std::uint32_t threshold) {
  TileRow row;
  for (std::size_t byte = 0; byte < 4; ++byte)
    for (std::size_t j = 0; j < 8; ++j) {
      const std::uint32_t word = words.at[j % 2 * 2 + i / 8][i % 8 * 4 + j / 2];
      row[8 * byte + j] = (word >> (8 * byte) & 255) >= threshold ? 1 : 0;
    }
  return row;
}

}  // namespace

DropoutRule::DropoutRule(double rate)
    : threshold(static_cast<std::uint32_t>(std::ceil(rate * 0x1p24))), scale(1 / (1 - rate)) {}

void fill_retained(RandomKey key, std::uint64_t first, const DropoutRule& rule, std::span<std::uint8_t> out) {
  BlockWords words;
  const std::uint32_t threshold = rule.threshold;
  for (std::size_t num_done = 0; num_done < out.size();) {
    const std::uint64_t element = first + num_done;
    const std::size_t skipped = element % 4;
    const std::size_t count = std::min(out.size() - num_done, words.size() - skipped);
    const std::size_t num_blocks = (skipped + count + 3) / 4;
    fill_blocks(key, element / 4, std::min(kBlocks, (num_blocks + 15) / 16 * 16), words);
    std::uint8_t* to = out.data() + num_done;
    const std::uint32_t* from = words.data() + skipped;
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) to[i] = (from[i] >> 8) >= threshold ? 1 : 0;
    num_done += count;
  }
}

void fill_retained_scores(RandomKey key, std::uint32_t threshold, Span queries, Span keys, std::uint8_t* out,
                          std::int64_t stride) {
  constexpr std::int64_t kRows = kDropoutTileQueries, kColumns = kDropoutTileKeys;
  TileWords words;
  for (std::int64_t top = queries.begin / kRows * kRows; top < queries.end; top += kRows)
    for (std::int64_t left = keys.begin / kColumns * kColumns; left < keys.end; left += kColumns) {
      fill_tile(key, static_cast<std::uint32_t>(top / kRows), static_cast<std::uint32_t>(left / kColumns),
                words);
      const std::int64_t begin = std::max(left, keys.begin), end = std::min(left + kColumns, keys.end);
      for (std::int64_t i = std::max(top, queries.begin); i < std::min(top + kRows, queries.end); ++i) {
        const TileRow row = retained_row(words, static_cast<std::size_t>(i - top), threshold);
        std::copy(row.begin() + (begin - left), row.begin() + (end - left),
                  out + (i - queries.begin) * stride + begin - keys.begin);
      }
    }
}

}  // namespace optimus
