// Sample: one training sequence, as a plain value.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/token_id.h"

namespace optimus {

// The target at positions without a loss: padding, positions whose target is in another document, and
// positions that masked-LM training does not mask.
inline constexpr TokenId kNoTarget = -1;

struct Sample {
  std::vector<TokenId> inputs, targets;
  std::vector<std::int32_t> positions;
  // For each position, the index of its document within the sample: 0, 1, … in order.
  std::vector<std::int32_t> documents;
  std::int64_t num_targets = 0;  // number of targets that are not kNoTarget
};

}  // namespace optimus
