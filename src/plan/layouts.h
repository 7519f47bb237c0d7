// From a plan to layouts: which device holds which piece of which parameter, gradient and optimizer state.
#pragma once

#include "layout/layout.h"
#include "plan/plan.h"

namespace optimus {

// weights: what lies there between steps. gradients: accumulated, after reduction. optimizer: masters and
// moments. The three differ by ZeRO stage: 1 shards the optimizer, 2 also gradients, 3 also weights.
enum class StateKind { weights, gradients, optimizer };

// Devices that share one copy of this state: 1 below the ZeRO stage that shards it.
int shards_of(const Stage& stage, const LayerStrategy& strategy, StateKind kind);
int expert_shards_of(const Stage& stage, const LayerStrategy& strategy,
                     StateKind kind);  // of a mixture's experts

// bytes_per_element of a state under a precision: 2 for bf16 weights, 12 for their masters and moments, …
int state_bytes(Precision precision, Precision accumulators, StateKind kind);

// The whole model. Ranks are the plan's virtual devices. A tied embedding is placed wherever one of its two
// blocks is. Pipelines that split the model
// alike are replicas of one grid. The plan must be valid for the model. O(devices + tensors * different pipelines).
Layout layout_of(const Plan& plan, const ModelSpec& model, StateKind kind);
// The same with the copies that buddies hold (Plan::buddy): who could give away which piece of the state. Of masters and moments, or of
// weights where these are the masters.
Layout layout_with_buddies(const Plan& plan, const ModelSpec& model, StateKind kind);

// Whether another device repeats the updates of a shard under this strategy.
bool has_buddy(const Plan& plan, const LayerStrategy& strategy);
// Devices that together are the only holders of some masters and moments, as few as there are: losing them loses state, losing any
// fewer does not.
std::vector<int> fewest_holders(const Plan& plan);
// The same for what fails together: domain_of[device] is its host, say. The domains that have to be lost, all of them.
std::vector<int> fewest_domains(const Plan& plan, const std::vector<int>& domain_of);
// The plan with the distance between shards and their copies (Plan::buddy) that leaves fewest copies in the domain of what they are copies
// of; its own where no other is better.
Plan with_copies_apart(Plan plan, const std::vector<int>& domain_of);

// What each of tp parts holds of a dimension cut in `unit`, in elements: heads, ffn columns and vocabulary
// rows evenly, whole experts evenly, key/value heads as the part's query heads need them (so several parts may hold the same ones).
std::vector<Span> tensor_parts(const ModelSpec& model, CutUnit unit, int tp);
// One of them.
Span tensor_part(const ModelSpec& model, CutUnit unit, int tp, int part);

// How many devices may be lost, whichever they are, so that every block's state is still there.
int can_lose(const Plan& plan);

}  // namespace optimus
