// Masked-LM masking (BERT). The masks are keyed by the sample, so they do not depend on which worker prepares
// the batch.
#pragma once

#include "base/random.h"
#include "data/samples.h"

namespace optimus {

// Chooses positions of sample.inputs, replaces them according to MaskingOptions, and makes exactly these
// positions count as targets. Chooses at least one position if the sample has any non-special token.
void mask_tokens(RandomKey key, const MaskingOptions& options, Sample& sample);

}  // namespace optimus
