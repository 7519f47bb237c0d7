// Membership changes: when ranks are lost, join or leave, the other ranks continue without a restart. This
// file decides on the new members, the new plan, and the source of its state. The process that hosts the
// run's store makes the decision from the reports of the ranks (emergency_checkpoint.h), and all ranks apply
// it (run/rank_membership.cpp). No side effects.
//
//   generation 0     workers 0 1 2 3 = ranks 0 1 2 3    dp4
//   worker 2 is killed
//   generation 1     workers 0 1 3   = ranks 0 1 2      dp3: masters and moments from the remaining ranks
//   worker 4 joins
//   generation 2     workers 0 1 3 4 = ranks 0 1 2 3    dp4
//
// The id of a worker never changes. Its rank is its number in one generation.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "elastic/emergency_checkpoint.h"
#include "elastic/interim_plan.h"
#include "elastic/membership.h"
#include "plan/phase.h"
#include "plan/plan.h"

namespace optimus {

struct MembershipChange {
  // The source of the state: the live ranks, a checkpoint (in files or in host memory), or the initial state
  // of the run (`begin`).
  enum class Source { live, checkpoint, begin };

  Membership membership;  // leaving ranks come last
  int num_staying = 0;
  // Number of worker ids assigned so far. It is also the id of the next joining worker, even if another
  // process then hosts the run.
  int num_worker_ids = 0;
  // The state has the layout of the plan `from`, whose devices are ranks of the new membership. Devices that
  // are lost or have no usable state are numbered after all ranks. `to` is the new plan, with the placement
  // that all ranks use.
  Plan from, to;
  Source source = Source::live;
  Path checkpoint{};
  TrainingState state{};       // the state that all ranks have afterwards
  std::int64_t epoch = 0;      // plan epoch of `from`; `to` has the next one
  std::vector<double> gate{};  // sums of the gate, for ranks that are one step behind the others
  std::int64_t num_steps_lost = 0;
  std::string kind{};         // recover, drain, join: as in decisions
  std::string description{};  // which ranks were lost, joined or left
};
std::string text(const MembershipChange& order);
// Thrown when a rank learns that the other ranks have continued without it.
struct ExcludedFromRun {};
// Throws UserError for an invalid text.
MembershipChange parse_membership_change(const std::string& text);

struct MembershipChangeInputs {
  const ModelSpec& model;
  Membership membership;  // the old membership
  int num_staying = 0;    // number of members that stay; the other members have left or are about to leave
  // [epoch]: the plans whose layout the state may have. Their devices are ranks of the old membership.
  std::map<std::int64_t, Plan> plans;
  std::vector<int> joining_workers;  // new worker ids
  std::map<int, std::string> lost;   // by worker id: a description of what happened
  std::vector<Phase> phases{};       // phases of the training; empty if it has only one
  // The newest complete checkpoint, if there is one.
  std::function<std::optional<std::pair<Path, TrainingState>>()> find_checkpoint;
  // Chooses the new plan. `state` is nullopt if all state is read from files.
  std::function<Feasible<Plan>(int num_devices, const std::optional<StateLocation>& state)> choose;
};

// Returns the decision, or the reason why the ranks cannot continue. `survivor_states` contains the reports
// of ranks in the old membership.
tl::expected<MembershipChange, std::string> plan_membership_change(
    const MembershipChangeInputs& inputs, const std::vector<SurvivorState>& survivor_states);

}  // namespace optimus
