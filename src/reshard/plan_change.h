// PlanChange: describes how a running training job changes from one plan to another: which rank gets which
// position in the new plan, and which state moves in which order. Every rank computes the same result from
// the two plans before anything is modified. switching/move.h executes the change.
//
// State is the data that cannot be recomputed: master weights and moments. Weights of lower precision are
// rounded from master weights, and gradients are computed again in the next step. If the weights serve as
// master weights (fp32, fp64), master weights are distributed like weights, otherwise like moments:
//
//              bf16                                 fp32
//   zero 0     masters + moments everywhere         masters, moments everywhere
//   zero 1, 2  masters + moments by shard           masters everywhere, moments by shard
//   zero 3     masters + moments by shard           masters, moments by shard
//
// With redundant shard copies (Plan::copy_distance), each shard of the state is on two devices. Both devices
// can send the shard, and both need it.
#pragma once

#include <vector>

#include "base/error.h"
#include "layout/change.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// Which copies of the master weights are valid. `all` means all copies in the table above. `owned` means only
// the copies on the owners of the moments, as is the case after an update whose weights have not been
// gathered yet.
enum class MasterCopies { all, owned };

// The layout of the state to move. If master weights and moments are distributed differently, it lists the
// model's tensors twice: first as master weights, then as moments. Otherwise, one entry per tensor represents
// both.
Layout state_layout(const Plan& plan, const ModelSpec& model, MasterCopies copies = MasterCopies::all);

// Whether state is sent in advance, before training pauses (switching/precopy.h). With `automatic`, it is
// sent if this shortens the pause by more than it costs.
enum class PrecopyMode { automatic, always, never };

struct PlanChange {
  Plan from, to;                            // the devices of `to` are the ranks of the run
  MasterCopies copies = MasterCopies::all;  // valid copies in `old_layout`
  Layout old_layout, new_layout;
  std::vector<Rank> dead;  // devices of `from` that were lost together with their state
  WaveOrder order;
  // Memory available on every rank for received data, in addition to the larger of its old and its new state.
  Bytes spare_memory;
  Bytes moved;    // total bytes that all ranks move
  Bytes minimum;  // lower bound on `moved` over all assignments of positions to ranks
};

// Returns the same plan on other devices: device d of the plan becomes device_of[d].
Plan with_devices(Plan plan, const std::vector<int>& device_of);

// The ranks that are available for a plan change. The devices of `from` are these ranks; higher device
// numbers in `from` are lost ranks. `to` may use only the first `num_staying` ranks.
struct AvailableRanks {
  int num_ranks = 0, num_staying = 0;
  MasterCopies copies = MasterCopies::all;
  // True if the devices of `to` are already ranks. Otherwise, positions are assigned to ranks in the way that
  // moves the least data. Among equally good assignments, the choice depends on the device numbers of `to`,
  // so assigning the resulting plan again may give a different result.
  bool is_placed = false;
  bool is_phase = false;  // a new training phase starts, so batch and sequence length may differ
};

// Returns the plan change. If it is impossible, returns the reason in one sentence: a different model, batch,
// sequence length or precision, too few ranks, or state that only lost ranks had.
Feasible<PlanChange> find_plan_change(const Plan& from, const Plan& to, const ModelSpec& model,
                                      const AvailableRanks& available_ranks);
// Like find_plan_change(), but throws the reason as a UserError.
PlanChange change_plan(const Plan& from, const Plan& to, const ModelSpec& model,
                       const AvailableRanks& available_ranks);
inline PlanChange change_plan(const Plan& from, const Plan& to, const ModelSpec& model, int num_ranks) {
  return change_plan(from, to, model, {.num_ranks = num_ranks, .num_staying = num_ranks});
}

// Returns the transfers of one rank, after verifying them (layout/verify.h).
RankShare share_of(const PlanChange& change, int rank);

}  // namespace optimus
