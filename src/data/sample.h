// Sample: one training sequence. A plain value.
#pragma once

#include <cstdint>
#include <vector>

#include "tokenizer/token_id.h"

namespace optimus {

// The target of a position that does not count: padding, across documents, not masked.
inline constexpr TokenId kNoTarget = -1;

struct Sample {
  std::vector<TokenId> inputs, targets;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> documents;  // 0, 1, … within the sample, in order
  std::int64_t num_counted = 0;         // targets that are not kNoTarget
};

}  // namespace optimus
