// Generates many keyed random words at once: the generator of base/random.h, with four or more blocks per
// vector instruction.
//
// The numbers are identical (a test compares them); only the order of computation differs.
#pragma once

#include <cstdint>
#include <span>

#include "base/box.h"
#include "base/random.h"

namespace optimus {

// A dropout rate in the form that loops need: an element is dropped if its uniform number (24 bits) is
// below the threshold.
struct DropoutRule {
  std::uint32_t threshold = 0;
  double scale = 1;  // factor of retained elements

  explicit DropoutRule(double rate);
};

// Sets out[i] to true if element first + i of the key's random numbers is retained.
void fill_retained(RandomKey key, std::uint64_t first, const DropoutRule& rule, std::span<std::uint8_t> out);

// Sets out[i * stride + j] to 1 if attention retains the probability of key keys.begin + j for query
// queries.begin + i, else to 0 (attention_dropout.h). `key` is that of the head.
void fill_retained_scores(RandomKey key, std::uint32_t threshold, Span queries, Span keys, std::uint8_t* out,
                          std::int64_t stride);

}  // namespace optimus
