// Keyed, counter-based random numbers (Philox4x32-10): each number is a pure function of (key, index).
//
// Any rank that computes any part of a tensor gets the same values, so initialization, dropout and sampling
// do not depend on how the work is split. A key is derived from the purpose of the numbers, never from a
// rank:
//
//   const RandomKey key = RandomKey(seed).derive("init").derive(layer).derive("q");
//   fill_normal(key, shape, my_box, values);   // the part of the logical tensor that my_box covers
//
// Element i (row-major in the whole tensor) uses word i % 4 of block i / 4, in every precision.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/box.h"

namespace optimus {

struct RandomKey {
  std::uint64_t value = 0;

  constexpr RandomKey() = default;
  constexpr explicit RandomKey(std::uint64_t seed) : value(mix(seed)) {}
  constexpr RandomKey derive(std::uint64_t id) const {
    return raw(mix(value ^ mix(id + 0x9e3779b97f4a7c15ULL)));
  }
  constexpr RandomKey derive(std::string_view name) const {
    std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
    for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return raw(mix(value ^ mix(hash)));
  }
  constexpr bool operator==(const RandomKey&) const = default;

 private:
  static constexpr RandomKey raw(std::uint64_t value) {
    RandomKey key;
    key.value = value;
    return key;
  }
  static constexpr std::uint64_t mix(std::uint64_t x) {  // finalizer of SplitMix64: a bijection
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
};

// Block `index` of the key's sequence: four independent 32-bit words.
std::array<std::uint32_t, 4> random_block(RandomKey key, std::uint64_t index);
// 64 random bits: the first two words of block `index`.
std::uint64_t random_bits(RandomKey key, std::uint64_t index);
// A uniform number in [0, 1) made from the upper 53 bits of random_bits().
double random_uniform(RandomKey key, std::uint64_t index);
// A uniform integer in [0, bound) with negligible bias. `bound` must be below 2^53.
std::uint64_t random_below(RandomKey key, std::uint64_t index, std::uint64_t bound);

// These functions fill `out` with the values of the elements of `box` in a logical tensor of `shape`, in
// row-major order. fill_uniform() draws from [0, 1), and fill_normal() from the standard normal distribution.
// The float and double overloads produce the same numbers, each rounded to its type. `out` must have
// box.num_elements() elements.
void fill_uniform(RandomKey key, const Shape& shape, const Box& box, std::span<float> out);
void fill_uniform(RandomKey key, const Shape& shape, const Box& box, std::span<double> out);
void fill_normal(RandomKey key, const Shape& shape, const Box& box, std::span<float> out);
void fill_normal(RandomKey key, const Shape& shape, const Box& box, std::span<double> out);

}  // namespace optimus
