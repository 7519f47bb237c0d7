// How Hugging Face checkpoints name the parameters of each family. Names are without ".weight" / ".bias";
// nullptr where a family has no such parameter. Used by tensors.cpp alone.
#pragma once

#include "model/spec.h"

namespace optimus {

struct HfNames {
  const char *words, *positions, *token_types, *embedding_norm;
  const char* layers;  // stands before "3." and the names of the layer's own
  const char *norm1, *q, *k, *v, *q_norm, *k_norm, *out, *norm2, *gate, *up, *down;
  const char *final_norm, *transform, *transform_norm, *output;
  bool has_conv1d;  // the layer's matrices are stored [in, out]; q, k and v are one tensor
  // Mixtures of experts. The experts' names are whole: they have no ".weight".
  const char *router = nullptr, *expert_up = nullptr, *expert_down = nullptr;
  const char *q_down = nullptr, *q_down_norm = nullptr, *q_up = nullptr;  // latent attention
  const char *kv_down = nullptr, *kv_down_norm = nullptr, *kv_up = nullptr;
  const char *shared_gate = nullptr, *shared_up = nullptr, *shared_down = nullptr;
};

const HfNames& hf_names(Family family);

}  // namespace optimus
