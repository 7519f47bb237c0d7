// Generates many keyed random words at once. This is the generator of base/random.h, with four or more blocks
// per vector instruction.
//
// The numbers are identical, and a test compares them. Only the order of computation differs.
#pragma once

#include <cstdint>
#include <span>

#include "base/random.h"

namespace optimus {

// A dropout rate in the form that loops need. An element is dropped if its uniform number (24 bits) is below
// the threshold.
struct DropoutRule {
  std::uint32_t threshold = 0;
  double scale = 1;  // factor of retained elements

  explicit DropoutRule(double rate);
};

// Sets out[i] to 1 if the element with random number first + i of the key is retained, otherwise to 0.
void fill_retained(RandomKey key, std::uint64_t first, const DropoutRule& rule, std::span<std::uint8_t> out);

}  // namespace optimus
