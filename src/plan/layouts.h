// Derives layouts from a plan: which device stores which piece of each parameter, gradient and optimizer
// state.
#pragma once

#include "layout/layout.h"
#include "plan/plan.h"

namespace optimus {

// weights: as stored between steps. gradients: accumulated and reduced. optimizer: master weights and
// moments. The ZeRO stage determines which of them are sharded: stage 1 shards the optimizer state, stage 2
// also the gradients, stage 3 also the weights.
enum class StateKind { weights, gradients, optimizer };

// The number of devices that share one copy of this state; 1 if the ZeRO stage does not shard it.
int shards_of(const Stage& stage, const LayerStrategy& strategy, StateKind kind);
// The same for the experts of an MoE layer.
int expert_shards_of(const Stage& stage, const LayerStrategy& strategy, StateKind kind);

// Bytes per element of a state under a precision: 2 for bf16 weights, 12 for their master weights and
// moments, …
int state_bytes(Precision precision, Precision accumulators, StateKind kind);

// The layout of the whole model. Ranks are the plan's virtual devices. A tied embedding is placed wherever
// one of its two blocks is. Pipelines that split the model in the same way are replicas of one grid. The plan
// must be valid for the model. O(devices + tensors * different pipelines).
Layout layout_of(const Plan& plan, const ModelSpec& model, StateKind kind);
// The same, including the redundant copies of shards (Plan::copy_distance): every device that can supply a
// box of the state. For master weights and moments, or for the weights if they serve as master weights.
Layout layout_with_copies(const Plan& plan, const ModelSpec& model, StateKind kind);

// Whether another device repeats the updates of each shard under this strategy.
bool has_shard_copies(const Plan& plan, const LayerStrategy& strategy);
// The smallest set of devices that together are the only owners of some master weights and moments. If all of
// them are lost, state is lost; losing any smaller set of devices loses no state.
std::vector<int> smallest_owner_set(const Plan& plan);
// The same for failure domains: domain_of[device] is the domain of a device, such as its host. Returns the
// smallest set of domains that cannot all be lost without losing state.
std::vector<int> smallest_domain_set(const Plan& plan, const std::vector<int>& domain_of);
// Returns the plan with the Plan::copy_distance that puts the fewest copies of shards into the failure
// domain of their original. Keeps the plan's own distance if no other is better.
Plan with_copies_in_other_domains(Plan plan, const std::vector<int>& domain_of);

// The range, in elements, of each of `tp` parts of a dimension that is split in `unit`. Heads, ffn columns
// and vocabulary rows are split evenly. Experts are assigned whole. Key/value heads follow the query heads
// of the part, so several parts may have the same ones.
std::vector<Span> tensor_parts(const ModelSpec& model, SplitUnit unit, int tp);
// The range of part `part` alone.
Span tensor_part(const ModelSpec& model, SplitUnit unit, int tp, int part);

// The largest n such that losing any n devices loses no block's state.
int num_tolerated_losses(const Plan& plan);

}  // namespace optimus
