// Derives layouts from a plan: which device stores which piece of each parameter, gradient and optimizer
// state.
#pragma once

#include "layout/layout.h"
#include "plan/plan.h"

namespace optimus {

// `weights` are the weights as stored between steps, `gradients` are the accumulated and reduced gradients,
// and `optimizer` is the master weights and moments. The ZeRO stage determines which of these are sharded:
// stage 1 shards the optimizer state, stage 2 also the gradients, and stage 3 also the weights.
enum class StateKind { weights, gradients, optimizer };

// The number of devices that share one copy of this state; 1 if the ZeRO stage does not shard it.
int shards_of(const Stage& stage, const LayerStrategy& strategy, StateKind kind);
// Like shards_of(), but for the experts of an MoE layer.
int expert_shards_of(const Stage& stage, const LayerStrategy& strategy, StateKind kind);

// Bytes per element of a state under a precision: 2 for bf16 weights, 12 for their master weights and
// moments, …
int state_bytes(Precision precision, Precision accumulators, StateKind kind);

// The layout of the whole model. Ranks are the plan's virtual devices. A tied embedding is placed on the
// devices of both of its blocks. Pipelines that split the model in the same way are replicas of one grid. The
// plan must be valid for the model. O(devices + tensors * different pipelines).
Layout layout_of(const Plan& plan, const ModelSpec& model, StateKind kind);
// Like layout_of(), but also includes the redundant copies of shards (Plan::copy_distance), so it lists every
// device that can supply a box of the state. Use it for master weights and moments, or for the weights if
// they serve as master weights.
Layout layout_with_copies(const Plan& plan, const ModelSpec& model, StateKind kind);

// Whether another device repeats the updates of each shard under this strategy.
bool has_shard_copies(const Plan& plan, const LayerStrategy& strategy);
// The smallest set of devices that together are the only owners of some master weights and moments. State is
// lost if all of these devices are lost. Losing any smaller set of devices loses no state.
std::vector<int> smallest_owner_set(const Plan& plan);
// Like smallest_owner_set(), but for failure domains: domain_of[device] is the domain of a device, such as
// its host. Returns the smallest set of domains that cannot all be lost without losing state.
std::vector<int> smallest_domain_set(const Plan& plan, const std::vector<int>& domain_of);
// Returns the plan with the Plan::copy_distance that places the fewest copies of shards in the same failure
// domain as the original. Keeps the plan's distance if no other distance is better.
Plan with_copies_in_other_domains(Plan plan, const std::vector<int>& domain_of);

// The range, in elements, that each of `tp` tensor-parallel ranks holds of a dimension that is split by
// `unit`. Heads, ffn columns and vocabulary rows are split evenly. A single expert is never split. Key/value
// heads follow the query heads of the rank, so several ranks may hold the same key/value heads.
std::vector<Span> tensor_parts(const ModelSpec& model, SplitUnit unit, int tp);
// Like tensor_parts(), but only for tensor-parallel rank `part`.
Span tensor_part(const ModelSpec& model, SplitUnit unit, int tp, int part);

// The largest n such that losing any n devices loses no block's state.
int num_tolerated_losses(const Plan& plan);

}  // namespace optimus
