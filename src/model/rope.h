// The frequencies of rotary position embeddings.
#pragma once

#include <vector>

#include "model/spec.h"

namespace optimus {

// Returns the rotation per position, in radians, for each of the head_dim / 2 pairs of elements. Includes the
// scaling that the model specifies.
std::vector<double> rope_frequencies(const ModelSpec& spec);

}  // namespace optimus
