// A keyed shuffle of [0, n) that needs no memory: position -> item and back, each in constant time.
//
// Whoever knows the key can say which sample stands at any place of an epoch without having shuffled
// anything, so workers need no shared index and a resumed run needs no replay.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace optimus {

class Permutation {
 public:
  // n >= 1.
  Permutation(RandomKey key, std::int64_t n);
  // The item at `position`, 0 <= position < n.
  std::int64_t operator()(std::int64_t position) const;
  // The position of `item`.
  std::int64_t inverse(std::int64_t item) const;

 private:
  std::uint64_t round_function(int round, std::uint64_t half) const;

  RandomKey key_;
  std::uint64_t n_;
  int half_bits_;
};

}  // namespace optimus
