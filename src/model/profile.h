// ModelProfile: what a model costs, block by block, before any plan: parameters, bytes of state, flops, what
// is kept for the backward, what tensor parallelism divides and where pipelines can be cut. Derived from
// tensors.h and operations.h; nothing here is measured.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/operations.h"
#include "model/spec.h"

namespace optimus {

// Bytes of training state per parameter: bf16 weights with fp32 gradient accumulators, master weights and two
// moments (18 together), or all in fp32 (16).
struct StateBytes {
  int weight, gradient, optimizer;
  int total() const { return weight + gradient + optimizer; }
};
inline constexpr StateBytes kBf16State{2, 4, 12};
inline constexpr StateBytes kFp32State{4, 4, 8};

// One kind of block; numbers are of one such block, flops and bytes of activations per token.
struct BlockProfile {
  BlockKind kind = BlockKind::layer;
  bool is_mixture = false;  // of experts
  std::int64_t count = 1;
  std::int64_t parameters = 0;  // a tied head has none of the word embedding's
  double forward_flops = 0, backward_flops = 0, repeated_flops = 0;  // as executed: causal attention is half
  std::array<double, 3> kept_bytes_bf16{}, kept_bytes_fp32{};        // by RecomputeMode
  // The part that a tensor-parallel cut divides, 0 to 1.
  double cut_parameters = 0, cut_flops = 0, cut_kept = 0;
  std::int64_t most_parts = 1;  // more ranks than this would leave some without work
};

struct ModelProfile {
  ModelSpec spec;
  std::int64_t sequence_length = 0;
  std::int64_t parameters = 0;
  std::int64_t active_parameters = 0;  // that a token meets; all of a dense model's
  double flops_per_token = 0;          // model_flops_per_token
  std::vector<BlockProfile> blocks;    // embedding, dense layer, mixture layer, head; what there is of them
  // Between any two blocks, so there are at most `most_stages`; each cut moves `cut_elements` per token
  // forward and as many backward.
  std::int64_t most_stages = 0, cut_elements = 0;
};

// Throws UserError when learned positions end before sequence_length.
ModelProfile profile_model(const ModelSpec& spec, std::int64_t sequence_length);

// The length a profile uses when nobody says one: all positions, at most 8,192.
std::int64_t usual_sequence_length(const ModelSpec& spec);

OrderedJson to_json(const ModelProfile& profile);
std::string text(const ModelProfile& profile);

}  // namespace optimus
