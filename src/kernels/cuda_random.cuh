// Keyed random numbers on CUDA, identical to those of base/random.h.
#pragma once

#include <cstdint>

namespace optimus::cuda {

struct Words {
  std::uint32_t at[4];
};

// Computes a block of Philox4x32-10. base/random.cpp has the scalar implementation.
__device__ __forceinline__ Words random_block(std::uint64_t key, std::uint64_t index) {
  std::uint32_t a = static_cast<std::uint32_t>(index), b = static_cast<std::uint32_t>(index >> 32), c = 0,
                d = 0;
  std::uint32_t key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t low0 = 0xD2511F53u * a, high0 = __umulhi(0xD2511F53u, a);
    const std::uint32_t low1 = 0xCD9E8D57u * c, high1 = __umulhi(0xCD9E8D57u, c);
    a = high1 ^ b ^ key0, b = low1;
    c = high0 ^ d ^ key1, d = low0;
    key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

}  // namespace optimus::cuda
