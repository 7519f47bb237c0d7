// PlanChange: the transition of a running training from one plan to another: which rank takes which position,
// and which state moves in which order. Every rank computes the same result in advance from the two plans;
// nothing is modified. switching/move.h executes it.
//
// State is what cannot be rebuilt: master weights and moments. Weights of lower precision are rounded from
// master weights, and gradients start with the next step. If the weights serve as master weights (fp32,
// fp64), these are distributed like weights, otherwise like moments:
//
//              bf16                                 fp32
//   zero 0     masters + moments everywhere         masters, moments everywhere
//   zero 1, 2  masters + moments by shard           masters everywhere, moments by shard
//   zero 3     masters + moments by shard           masters, moments by shard
//
// With redundant shard copies (Plan::copy_distance), sharded state is on two devices: both can send it, and
// both need it.
#pragma once

#include <vector>

#include "layout/change.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// Which copies of master weights are valid. all: as in the table above. owned: only those on the owners of
// moments, as after a step whose updated weights have not been gathered.
enum class MasterCopies { all, owned };

// The state to move, for each of the model's tensors: first all master weights, then all moments, if they are
// distributed differently; otherwise both together under one index.
Layout state_layout(const Plan& plan, const ModelSpec& model, MasterCopies copies = MasterCopies::all);

// Whether state is sent in advance, before training pauses (switching/precopy.h). automatic: if it shortens
// the pause by more than it costs.
enum class PrecopyMode { automatic, always, never };

struct PlanChange {
  Plan from, to;                            // the devices of `to` are ranks of the run
  MasterCopies copies = MasterCopies::all;  // valid copies in `old_layout`
  Layout old_layout, new_layout;
  std::vector<Rank> dead;  // devices of `from` that are lost, with their state
  WaveOrder order;
  Bytes room;     // memory that every rank has for moved data, beyond the larger of its old and new state
  Bytes moved;    // by all ranks together
  Bytes minimum;  // lower bound over all assignments of positions
};

// The same plan on other devices: device d becomes device_of[d].
Plan with_devices(Plan plan, const std::vector<int>& device_of);

// The available ranks. The devices of `from` are these ranks, and possibly higher numbers, which are lost.
// `to` may use the first `num_staying`.
struct AvailableRanks {
  int num_ranks = 0, num_staying = 0;
  MasterCopies copies = MasterCopies::all;
  // True if the devices of `to` are ranks already. Otherwise positions are assigned such that the least data
  // moves. The choice among equally good assignments depends on the device numbers of `to`, so repeating the
  // assignment may give another result.
  bool is_placed = false;
  bool is_phase = false;  // another phase of the training starts: batch and sequence length may differ
};

// Throws a UserError with one sentence if the change is impossible: a different model, batch, sequence length
// or precision, too few ranks, or state that only lost ranks had.
PlanChange change_plan(const Plan& from, const Plan& to, const ModelSpec& model,
                       const AvailableRanks& available_ranks);
inline PlanChange change_plan(const Plan& from, const Plan& to, const ModelSpec& model, int num_ranks) {
  return change_plan(from, to, model, {.num_ranks = num_ranks, .num_staying = num_ranks});
}

// The part of one rank, verified (layout/verify.h).
RankShare share_of(const PlanChange& change, int rank);

}  // namespace optimus
