// A balanced Feistel network over the smallest even number of bits that covers n. A value outside [0, n)
// passes through the network again until it is inside. This takes at most 4 passes on average, because the
// domain has at most 4 n values.
#include "data/permutation.h"

#include <bit>

#include "base/error.h"

namespace optimus {
namespace {
constexpr int kRounds = 6;
}

Permutation::Permutation(RandomKey key, std::int64_t n) : key_(key), n_(static_cast<std::uint64_t>(n)) {
  ensure(n >= 1, "a permutation needs at least one item, got {}", n);
  const auto bits = static_cast<int>(std::bit_width(n_ - 1));
  half_bits_ = bits < 2 ? 1 : (bits + 1) / 2;
}

std::uint64_t Permutation::round_function(int round, std::uint64_t half) const {
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  return key_.derive(static_cast<std::uint64_t>(round) << 48 | half).value & mask;
}

std::int64_t Permutation::operator()(std::int64_t position) const {
  std::uint64_t value = static_cast<std::uint64_t>(position);
  ensure(value < n_, "position {} is out of range for {} items", position, n_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (int round = 0; round < kRounds; ++round) {
      left ^= round_function(round, right);
      std::swap(left, right);
    }
    value = left << half_bits_ | right;
  } while (value >= n_);
  return static_cast<std::int64_t>(value);
}

std::int64_t Permutation::inverse(std::int64_t item) const {
  std::uint64_t value = static_cast<std::uint64_t>(item);
  ensure(value < n_, "item {} is out of range for {} items", item, n_);
  const std::uint64_t mask = (std::uint64_t{1} << half_bits_) - 1;
  do {
    std::uint64_t left = value >> half_bits_, right = value & mask;
    for (int round = kRounds - 1; round >= 0; --round) {
      std::swap(left, right);
      left ^= round_function(round, right);
    }
    value = left << half_bits_ | right;
  } while (value >= n_);
  return static_cast<std::int64_t>(value);
}

}  // namespace optimus
