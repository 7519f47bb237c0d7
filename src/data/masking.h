// Masking for masked-LM training (BERT). The masks are keyed by the sample, so they do not depend on which
// worker prepares the batch.
#pragma once

#include <cstdint>
#include <vector>

#include "base/random.h"
#include "data/sample.h"

namespace optimus {

// Settings for masked-LM training, which replaces next-token prediction.
struct MaskingOptions {
  TokenId mask_token = 0;
  std::int64_t vocab_size = 0;
  std::vector<TokenId> special_tokens;  // never masked and never used as a random replacement
  // The fraction of positions that are chosen. Of these, 80 % become the mask token, 10 % become a random
  // token, and 10 % stay unchanged.
  double chosen_fraction = 0.15;
};

// Chooses positions of sample.inputs, replaces the tokens there according to MaskingOptions, and makes only
// these positions targets. Chooses at least one position if the sample has any non-special token.
void mask_tokens(RandomKey key, const MaskingOptions& options, Sample& sample);

}  // namespace optimus
