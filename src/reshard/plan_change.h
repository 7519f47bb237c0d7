// PlanChange: the transition of a running training from one plan to another: which rank gets which position
// in the new plan, and which state moves in which order. Every rank computes the same result in advance
// from the two plans; nothing is modified. switching/move.h executes the transition.
//
// State is the data that cannot be recomputed: master weights and moments. Weights of lower precision are
// rounded from master weights, and gradients start again in the next step. If the weights serve as master
// weights (fp32, fp64), master weights are distributed like weights, otherwise like moments:
//
//              bf16                                 fp32
//   zero 0     masters + moments everywhere         masters, moments everywhere
//   zero 1, 2  masters + moments by shard           masters everywhere, moments by shard
//   zero 3     masters + moments by shard           masters, moments by shard
//
// With redundant shard copies (Plan::copy_distance), each shard of the state is on two devices: both can
// send it, and both need it.
#pragma once

#include <vector>

#include "base/error.h"
#include "layout/change.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// The valid copies of master weights. all: as in the table above. owned: only the copies on the owners of the
// moments, which is the case after an update whose weights have not been gathered yet.
enum class MasterCopies { all, owned };

// The layout of the state to move. If master weights and moments are distributed differently, it lists the
// model's tensors twice: first as master weights, then as moments. Otherwise one entry per tensor stands
// for both.
Layout state_layout(const Plan& plan, const ModelSpec& model, MasterCopies copies = MasterCopies::all);

// Whether state is sent in advance, before training pauses (switching/precopy.h). automatic: if that
// shortens the pause by more than it costs.
enum class PrecopyMode { automatic, always, never };

struct PlanChange {
  Plan from, to;                            // the devices of `to` are ranks of the run
  MasterCopies copies = MasterCopies::all;  // valid copies in `old_layout`
  Layout old_layout, new_layout;
  std::vector<Rank> dead;  // devices of `from` that are lost together with their state
  WaveOrder order;
  // Memory that every rank has for received data, beyond the larger of its old and new state.
  Bytes spare_memory;
  Bytes moved;    // bytes that all ranks together move
  Bytes minimum;  // lower bound of `moved` over all assignments of positions to ranks
};

// The same plan on other devices: device d of the plan becomes device_of[d].
Plan with_devices(Plan plan, const std::vector<int>& device_of);

// The ranks that are available for a plan change. The devices of `from` are these ranks; higher device
// numbers in `from` are lost ranks. `to` may use only the first `num_staying` ranks.
struct AvailableRanks {
  int num_ranks = 0, num_staying = 0;
  MasterCopies copies = MasterCopies::all;
  // True if the devices of `to` are already ranks. Otherwise positions are assigned to ranks such that the
  // least data moves. Among equally good assignments, the choice depends on the device numbers of `to`, so
  // repeating the assignment with its result may give another assignment.
  bool is_placed = false;
  bool is_phase = false;  // another phase of the training starts: batch and sequence length may differ
};

// The reason, in one sentence, if the change is impossible: another model, batch, sequence length or
// precision, too few ranks, or state that only lost ranks had.
Feasible<PlanChange> find_plan_change(const Plan& from, const Plan& to, const ModelSpec& model,
                                      const AvailableRanks& available_ranks);
// Throws the reason as a UserError.
PlanChange change_plan(const Plan& from, const Plan& to, const ModelSpec& model,
                       const AvailableRanks& available_ranks);
inline PlanChange change_plan(const Plan& from, const Plan& to, const ModelSpec& model, int num_ranks) {
  return change_plan(from, to, model, {.num_ranks = num_ranks, .num_staying = num_ranks});
}

// The transfers of one rank, verified (layout/verify.h).
RankShare share_of(const PlanChange& change, int rank);

}  // namespace optimus
