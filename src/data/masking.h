// Masked-LM masking (BERT), keyed by the sample, so that it does not depend on who prepares the batch.
#pragma once

#include "base/random.h"
#include "data/samples.h"

namespace optimus {

// Chooses positions of sample.inputs, replaces them as MaskingOptions says, and makes exactly those count as
// targets. At least one position is chosen where any may be.
void mask_tokens(RandomKey key, const MaskingOptions& options, Sample& sample);

}  // namespace optimus
