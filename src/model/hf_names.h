// Parameter names in Hugging Face checkpoints for each family, without ".weight" / ".bias". A name is nullptr
// if the family has no such parameter. Used only by tensors.cpp.
#pragma once

#include "model/spec.h"

namespace optimus {

struct HfNames {
  const char *words, *positions, *token_types, *embedding_norm;
  const char* layers;  // prefix of all layers; "3." (layer 3) and one of the names below follow
  const char *norm1, *q, *k, *v, *q_norm, *k_norm, *out, *norm2, *gate, *up, *down;
  const char *final_norm, *transform, *transform_norm, *output;
  bool has_conv1d;  // layer matrices are stored as [in, out], and q, k and v are one tensor
  // Mixtures of experts. Names of experts are complete and get no ".weight" suffix.
  const char *router = nullptr, *expert_up = nullptr, *expert_down = nullptr;
  const char *q_down = nullptr, *q_down_norm = nullptr, *q_up = nullptr;  // latent attention
  const char *kv_down = nullptr, *kv_down_norm = nullptr, *kv_up = nullptr;
  const char *shared_gate = nullptr, *shared_up = nullptr, *shared_down = nullptr;
};

const HfNames& hf_names(Family family);

}  // namespace optimus
