// Philox4x32-10 over arrays of blocks. base/random.cpp has the scalar implementation.
#include "kernels/host_dropout.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace optimus {
namespace {

// number of blocks that are computed at a time; their words fit into the L1 cache
constexpr std::size_t kBlocks = 64;
using BlockWords = std::array<std::uint32_t, 4 * kBlocks>;

// Computes the words of `count` blocks, starting with block `first`. `count` is a multiple of the vector
// length and at most kBlocks.
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

}  // namespace

DropoutRule::DropoutRule(double rate)
    : threshold(static_cast<std::uint32_t>(std::ceil(rate * 0x1p24))), scale(1 / (1 - rate)) {}

void fill_retained(RandomKey key, std::uint64_t first, const DropoutRule& rule, std::span<std::uint8_t> out) {
  BlockWords words;
  const std::uint32_t threshold = rule.threshold;
  for (std::size_t num_filled = 0; num_filled < out.size();) {
    const std::uint64_t element = first + num_filled;
    const std::size_t offset = element % 4;
    const std::size_t count = std::min(out.size() - num_filled, words.size() - offset);
    const std::size_t num_blocks = (offset + count + 3) / 4;
    fill_blocks(key, element / 4, std::min(kBlocks, (num_blocks + 15) / 16 * 16), words);
    std::uint8_t* to = out.data() + num_filled;
    const std::uint32_t* from = words.data() + offset;
#pragma omp simd
    for (std::size_t i = 0; i < count; ++i) to[i] = (from[i] >> 8) >= threshold ? 1 : 0;
    num_filled += count;
  }
}

}  // namespace optimus
