// Software: the training program that runs a plan, described by properties that a user can specify. The table
// contains the Optimus engine and versions of Megatron-LM, FSDP and similar programs, so that the same
// formulas predict the published runs of those programs. Speeds are in cost/constants.h.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "model/operations.h"

namespace optimus {

// How the operations between GEMMs are executed: with one kernel per elementary operation, with hand-fused
// kernels, or with compiler-fused kernels.
enum class KernelStyle { eager, fused, compiled };

// unfused: scores are written to memory. first: FlashAttention 1. portable: FlashAttention 2, which does not
// use the newest instructions of the device. native: the vendor's kernels, which use the newest instructions.
enum class AttentionKernel { unfused, first, portable, native };

// How a stage exchanges activations with its neighbors. beside: compute continues during messages. paired:
// compute waits while a send and a receive in the opposite direction run together. sequential: compute waits
// for each message.
enum class StageMessaging { beside, paired, sequential };

// The meaning of "selective" recomputation in this software.
enum class SelectiveMeaning {
  pointwise_operations,  // Optimus: outputs of norms and activation functions
  attention_core,        // Megatron: scores, softmax and weighted values
  every_other_gemm,      // torchtitan: every other GEMM, and all inexpensive operations
};

struct Software {
  std::string_view name;
  // True for the engine that executes step programs, so that lanes, rings and buffers are the same as in the
  // program. Other software overlaps only what the fields below specify.
  bool runs_programs = false;
  bool launches_from_python = true;  // if false, compiled code or a CUDA graph launches kernels
  KernelStyle kernels = KernelStyle::fused;
  AttentionKernel attention = AttentionKernel::native;
  bool overlaps_reduce = true;  // data-parallel gradient reductions overlap with the backward pass
  bool overlaps_gather = true;  // data-parallel parameter gathers overlap with the forward pass
  // The owners of shards broadcast their updated shards one after the other. If false, all ranks gather at
  // once.
  bool broadcasts_shards = false;
  bool overlaps_tensor = false;  // tensor-parallel collectives overlap with GEMMs
  StageMessaging messages = StageMessaging::paired;
  // Between stages, each tensor-parallel rank sends its slice of an activation. If false, each rank sends the
  // whole activation.
  bool scatters_messages = true;
  bool has_chunked_loss = false;  // logits are computed for one slice of tokens at a time
  int gradient_bytes = 4;         // bytes per gradient element, in accumulators and in messages
  int default_zero = 0;           // ZeRO stage if a run does not specify it
  RecomputeMode default_recompute = RecomputeMode::none;
  bool default_interleaving = false;
  bool default_sequence_parallel = false;  // used with tensor parallelism if a run does not specify it
  SelectiveMeaning selective = SelectiveMeaning::attention_core;
  // Unfused attention: one kernel scales, masks and normalizes the scores (16-bit formats only).
  bool has_fused_softmax = true;
  bool has_flash_attention() const { return attention != AttentionKernel::unfused; }
  // Bytes per parameter in addition to weights, gradients and optimizer state, such as flat copies and casts.
  int copied_bytes = 0;
  bool balances_experts = false;  // MoE benchmarks: tokens are distributed evenly, regardless of the router
  bool gathers_in_fp8 = false;    // parameters are gathered in fp8 if GEMMs run in fp8
};

// All software in the table. The first entry is Optimus.
std::span<const Software> all_software();
const Software& optimus_software();
// Returns nullptr if the name is unknown.
const Software* find_software(std::string_view name);

}  // namespace optimus
