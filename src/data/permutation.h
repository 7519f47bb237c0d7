// A keyed permutation of [0, n) in constant memory. It maps a position to its item and back in constant time.
//
// The key determines which sample is at each position of an epoch, so no list of samples is ever shuffled.
// Workers therefore need no shared index, and a resumed run needs no replay.
#pragma once

#include <cstdint>

#include "base/random.h"

namespace optimus {

class Permutation {
 public:
  // `n` must be at least 1.
  Permutation(RandomKey key, std::int64_t n);
  // The item at `position`, where 0 <= position < n.
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
