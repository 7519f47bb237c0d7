// Which attention probabilities dropout drops: the definition, shared by the CUDA kernels, the host kernel
// and the plain implementation. It depends on the seed, step, layer, sample, head and positions only, so
// every plan drops the same ones.
//
// Query i and key j are positions in the whole sequence. The scores of a head are cut into tiles of 16
// queries x 32 keys: tile (i / 16, j / 32). A tile has 32 lanes of 16 scores, those that a thread of a warp
// holds after mma.m16n8k16 for the four adjacent 16 x 8 matrices of the tile. Within the tile (i = i % 16,
// j = j % 32), the score has
//
//   lane i % 8 * 4 + j % 8 / 2,   word j % 2 * 2 + i / 8,   byte j / 8.
//
// One call of Philox4x32 with 7 rounds, the counter (tile row, tile column, lane, 0) and the head's key gives
// the 4 words of a lane; byte 0 is the lowest 8 bits of a word. The key of a head is
// key.derive(sample).derive(head) (base/random.h), with the head's index among all heads of the model.
//
// The probability is dropped if its byte is less than the threshold, round(rate * 256), at least 1 and at
// most 255. Retained probabilities are multiplied by 256 / (256 - threshold), so that the expectation is
// exact: the rate is in effect a multiple of 1 / 256 (0.1 is 26 / 256).
#pragma once

#include <cmath>
#include <cstdint>

#include "kernels/host_device.h"

namespace optimus {

constexpr int kDropoutTileQueries = 16, kDropoutTileKeys = 32, kDropoutLanes = 32;
constexpr int kDropoutRounds = 7;

// The random words of one lane of a tile.
struct DropoutWords {
  std::uint32_t at[4];
};

OPTIMUS_HOST_DEVICE inline std::uint64_t wide_product(std::uint32_t a, std::uint32_t b) {
#ifdef __CUDA_ARCH__
  std::uint64_t product;  // one instruction; nvcc 13.0 makes two of the expression below
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(product) : "r"(a), "r"(b));
  return product;
#else
  return std::uint64_t{a} * b;
#endif
}

OPTIMUS_HOST_DEVICE inline DropoutWords dropout_words(std::uint64_t key, std::uint32_t tile_row,
                                                      std::uint32_t tile_column, std::uint32_t lane) {
  std::uint32_t a = tile_row, b = tile_column, c = lane, d = 0;
  std::uint32_t key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
#ifdef __CUDACC__
#pragma unroll
#else
#pragma GCC unroll 7
#endif
  for (int round = 0; round < kDropoutRounds; ++round) {
    const std::uint64_t left = wide_product(0xD2511F53u, a), right = wide_product(0xCD9E8D57u, c);
    a = static_cast<std::uint32_t>(right >> 32) ^ b ^ key0, b = static_cast<std::uint32_t>(right);
    c = static_cast<std::uint32_t>(left >> 32) ^ d ^ key1, d = static_cast<std::uint32_t>(left);
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// Where a score finds its byte. `query` and `key` are positions.
struct DropoutPlace {
  std::uint32_t tile_row, tile_column, lane;
  int word, byte;
};
OPTIMUS_HOST_DEVICE inline DropoutPlace dropout_place(std::int64_t query, std::int64_t key) {
  const int i = static_cast<int>(query % kDropoutTileQueries), j = static_cast<int>(key % kDropoutTileKeys);
  return {static_cast<std::uint32_t>(query / kDropoutTileQueries),
          static_cast<std::uint32_t>(key / kDropoutTileKeys),
          static_cast<std::uint32_t>(i % 8 * 4 + j % 8 / 2), j % 2 * 2 + i / 8, j / 8};
}

// The threshold of a rate in (0, 1), and the factor of retained probabilities.
inline std::uint32_t dropout_threshold(double rate) {
  const double steps = std::floor(rate * 256 + 0.5);
  return static_cast<std::uint32_t>(steps < 1 ? 1 : steps > 255 ? 255 : steps);
}
OPTIMUS_HOST_DEVICE inline double dropout_scale(std::uint32_t threshold) {
  return 256.0 / (256.0 - threshold);
}

// Whether the probability of a key for a query is dropped; `head_key` is the value of the head's key.
OPTIMUS_HOST_DEVICE inline bool is_dropped(std::uint64_t head_key, std::uint32_t threshold,
                                           std::int64_t query, std::int64_t key) {
  const DropoutPlace place = dropout_place(query, key);
  const DropoutWords words = dropout_words(head_key, place.tile_row, place.tile_column, place.lane);
  return (words.at[place.word] >> (8 * place.byte) & 255) < threshold;
}

// RandomKey::derive(id) on the value of a key, for device code (a test compares them).
OPTIMUS_HOST_DEVICE inline std::uint64_t mixed_bits(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}
OPTIMUS_HOST_DEVICE inline std::uint64_t derived_key(std::uint64_t key, std::uint64_t id) {
  return mixed_bits(key ^ mixed_bits(id + 0x9e3779b97f4a7c15ULL));
}

}  // namespace optimus
