// The frequencies of rotary position embeddings.
#pragma once

#include <vector>

#include "model/spec.h"

namespace optimus {

// The rotation per position of each of the head_dim / 2 pairs of elements, in radians, including the scaling
// that the model specifies.
std::vector<double> rope_frequencies(const ModelSpec& spec);

}  // namespace optimus
