// Software: which training program runs a plan, as physical properties that a user can state. Our own engine is one of them;
// the others are generations of Megatron-LM, FSDP and their kin, so that their published runs can be predicted with the
// same formulas. Not here: how fast anything is (cost/constants.h).
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/operations.h"

namespace optimus {

// What runs between products: one kernel an elementary operation, hand-fused kernels, or what a compiler fused.
enum class KernelStyle { eager, fused, compiled };

// unfused: scores are written. first: the first flash attention. portable: a second one, without a device's newest
// instructions. native: the maker's own, with them.
enum class AttentionKernel { unfused, first, portable, native };

// How a stage hands activations on. beside: compute goes on. paired: a send and the receive of the other direction go
// together, compute waits. one_by_one: compute waits for each.
enum class StageMessages { beside, paired, one_by_one };

// What "selective" recomputing means there.
enum class SelectiveMeaning {
  cheap_operations,  // ours: outputs of norms and activation functions
  attention_core,    // Megatron: scores, softmax and weighted values
  half_of_products,  // torchtitan: every other product, and all that is cheap
};

struct Software {
  std::string_view name;
  // Lanes, rings and buffers are exactly those of the step program. Others overlap what the fields below say, and no more.
  bool runs_programs = false;
  bool launches_from_python = true;  // else kernels are launched by compiled code, or by a graph
  KernelStyle kernels = KernelStyle::fused;
  AttentionKernel attention = AttentionKernel::native;
  bool overlaps_reduce = true;  // gradients over data parallel, with the backward
  bool overlaps_gather = true;  // parameters over data parallel, with the forward
  bool broadcasts_shards =
      false;  // each owner in its turn sends the others what it has updated; else all gather at once
  bool overlaps_tensor = false;  // tensor-parallel collectives, with products
  StageMessages messages = StageMessages::paired;
  bool scatters_messages = true;  // each tensor part sends its slice; else each sends the whole activation
  bool has_chunked_loss = false;  // logits of some tokens at a time
  int gradient_bytes = 4;         // of one gradient, accumulated and on the wire
  int usual_zero = 0;             // where a run does not say
  RecomputeMode usual_recompute = RecomputeMode::none;
  bool usual_interleaving = false;
  bool usual_sequence_parallel = false;  // with tensor parallelism, where a run does not say
  SelectiveMeaning selective = SelectiveMeaning::attention_core;
  bool has_fused_softmax =
      true;  // unfused attention: scale, mask and softmax of scores in one kernel (16 bits alone)
  bool has_flash_attention() const { return attention != AttentionKernel::unfused; }
  int copied_bytes = 0;  // a parameter, beside weights, gradients and optimizer: flat copies, casts
  bool balances_experts =
      false;  // benchmarks of mixtures of experts: tokens are sent evenly, whatever the router says
  bool gathers_in_fp8 = false;  // parameters travel in 8 bits when products are in 8 bits
};

// The one visible table, ours first.
std::span<const Software> all_software();
const Software& our_software();
// nullptr when there is no such name.
const Software* find_software(std::string_view name);

}  // namespace optimus
