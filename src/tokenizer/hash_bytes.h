// A fast hash of short strings for in-process tables. The values may change between releases and must not be
// written to files.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

namespace optimus {

constexpr std::uint64_t mix_bits(std::uint64_t x) {
  x *= 0x9E3779B97F4A7C15ULL;
  return x ^ (x >> 32);
}

inline std::uint64_t hash_bytes(std::string_view text) {
  std::uint64_t hash = text.size();
  while (text.size() >= 8) {
    std::uint64_t block = 0;
    std::memcpy(&block, text.data(), 8);
    hash = mix_bits(hash ^ block);
    text.remove_prefix(8);
  }
  std::uint64_t remainder = 0;
  for (const char c : text) remainder = (remainder << 8) | static_cast<unsigned char>(c);
  return mix_bits(mix_bits(hash ^ remainder));
}

}  // namespace optimus
