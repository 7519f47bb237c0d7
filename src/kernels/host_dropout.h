// Many keyed random words at once: base/random.h's generator, four or more blocks a vector instruction.
//
// The same numbers (a test compares them); only the order of work differs.
#pragma once

#include <cstdint>
#include <span>

#include "base/random.h"

namespace optimus {

// A dropout rate as loops use it: an element whose uniform number (24 bits) is below the threshold is dropped.
struct DropoutRule {
  std::uint32_t threshold = 0;
  double scale = 1;  // of what is kept

  explicit DropoutRule(double rate);
};

// out[i] is true where element first + i of the key's numbers is kept.
void fill_kept(RandomKey key, std::uint64_t first, const DropoutRule& rule, std::span<std::uint8_t> out);

}  // namespace optimus
