// The angles of rotary position embeddings.
#pragma once

#include <vector>

#include "model/spec.h"

namespace optimus {

// Radians a position turns each pair of elements, head_dim / 2 of them; with the scaling that the model asks for.
std::vector<double> rope_frequencies(const ModelSpec& spec);

}  // namespace optimus
