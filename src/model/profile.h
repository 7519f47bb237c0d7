// ModelProfile: the cost of a model per block, independent of any plan. It contains parameters, bytes of
// state, FLOPs, activations saved for the backward pass, the fractions that tensor parallelism divides, and
// the maximum number of pipeline stages. It is derived from tensors.h and operations.h without measurements.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "model/operations.h"
#include "model/spec.h"

namespace optimus {

// Bytes of training state per parameter: bf16 weights with fp32 gradients, fp32 master weights and two fp32
// moments (18 in total), or everything in fp32 without separate master weights (16).
struct StateBytes {
  int weight, gradient, optimizer;
  int total() const { return weight + gradient + optimizer; }
};
inline constexpr StateBytes kBf16State{2, 4, 12};
inline constexpr StateBytes kFp32State{4, 4, 8};

// One kind of block. The numbers are for one block of this kind. FLOPs and activation bytes are per token.
struct BlockProfile {
  BlockKind kind = BlockKind::layer;
  bool is_mixture = false;  // mixture of experts
  std::int64_t count = 1;
  std::int64_t parameters = 0;  // a tied head does not include the word embedding
  // FLOPs as executed, so causal attention counts only about half of the positions. See Operation.
  double forward_flops = 0, backward_flops = 0, attention_recompute_flops = 0;
  std::array<double, 3> saved_bytes_bf16{}, saved_bytes_fp32{};  // indexed by RecomputeMode
  // The fractions (0 to 1) of parameters, FLOPs and saved bytes that tensor parallelism divides.
  double split_parameter_fraction = 0, split_flops_fraction = 0, split_saved_fraction = 0;
  std::int64_t max_parts = 1;  // the largest useful tp; additional ranks would have no work
};

struct ModelProfile {
  ModelSpec spec;
  std::int64_t sequence_length = 0;
  std::int64_t parameters = 0;
  std::int64_t active_parameters = 0;  // parameters that one token uses; in a dense model, all parameters
  double flops_per_token = 0;          // see model_flops_per_token()
  // The kinds of blocks in the model, in the order embedding, dense layer, mixture layer, head.
  std::vector<BlockProfile> blocks;
  // Pipelines can be split between any two blocks, so there are at most `max_stages` stages. Each boundary
  // between stages transfers `boundary_elements_per_token` elements per token in the forward pass and as many
  // in the backward pass.
  std::int64_t max_stages = 0, boundary_elements_per_token = 0;
};

// Throws a UserError if the model has fewer learned positions than `sequence_length`.
ModelProfile profile_model(const ModelSpec& spec, std::int64_t sequence_length);

// The default sequence length of a profile: the maximum of the model, but at most 8,192.
std::int64_t default_sequence_length(const ModelSpec& spec);

OrderedJson to_json(const ModelProfile& profile);
std::string text(const ModelProfile& profile);

}  // namespace optimus
