// PlanChange: a running training goes from one plan to another. Who takes which place, what of its state moves and in which order.
// Worked out beforehand, by every rank alike, from the two plans alone; nothing is touched. How it is done: switching/move.h.
//
// State is what cannot be rebuilt: masters and moments. Weights of a lower precision are rounded from masters, gradients begin
// with the next step. Where masters are the weights (fp32, fp64) they lie as weights do, else as moments do:
//
//              bf16                                 fp32
//   zero 0     masters + moments everywhere         masters, moments everywhere
//   zero 1, 2  masters + moments by shard           masters everywhere, moments by shard
//   zero 3     masters + moments by shard           masters, moments by shard
//
// Where a plan has buddies (Plan::buddy), whatever lies by shard lies on two devices: both can give it away, both need it.
#pragma once

#include <vector>

#include "layout/change.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// Which copies of masters count. all: as above. owned: only where moments lie, as after a step whose updates nobody has gathered.
enum class MasterCopies { all, owned };

// What is moved, for each of the model's tensors: first all masters, then all moments, where these lie differently; else both
// together under one number.
Layout state_layout(const Plan& plan, const ModelSpec& model, MasterCopies copies = MasterCopies::all);

// Whether state is sent early, before training stands still (switching/precopy.h). automatic: where that shortens the pause by more than it
// costs.
enum class WhenEarly { automatic, always, never };

struct PlanChange {
  Plan from, to;                            // of `to` the devices are those of the run: ranks
  MasterCopies copies = MasterCopies::all;  // that count, of `before`
  Layout before, after;
  std::vector<Rank> dead;  // devices of `from` that are gone, with what they held
  WaveOrder order;
  Bytes room;     // that every rank has for what moves, beside the larger of its old and its new state
  Bytes moved;    // by all ranks together
  Bytes minimum;  // no choice of places moves less
};

// The same plan on other devices: device d becomes device_of[d].
Plan with_devices(Plan plan, const std::vector<int>& device_of);

// Who is there. `from` is on some of these ranks, and on some behind them, which are gone. The first `num_staying` may be used by `to`.
struct RanksThere {
  int num_ranks = 0, num_staying = 0;
  MasterCopies copies = MasterCopies::all;
  // The devices of `to` are ranks already, as somebody worked out for all. Else they are dealt so that least moves; of equally good ways
  // which one it is depends on how `to` numbers its devices, so dealing twice need not give the same.
  bool is_placed = false;
  bool is_phase = false;  // another phase of the training begins: batch and length may be others
};

// Throws UserError, in one sentence, when there cannot be such a change: another model, batch, sequence length or precision, too few
// ranks, or state that only those had who are gone.
PlanChange change_plan(const Plan& from, const Plan& to, const ModelSpec& model, const RanksThere& there);
inline PlanChange change_plan(const Plan& from, const Plan& to, const ModelSpec& model, int num_ranks) {
  return change_plan(from, to, model, {.num_ranks = num_ranks, .num_staying = num_ranks});
}

// One rank's part, verified (layout/verify.h).
RankShare share_of(const PlanChange& change, int rank);

}  // namespace optimus
