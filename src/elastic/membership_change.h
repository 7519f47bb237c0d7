// Membership changes: when ranks of a run are lost, join or leave, the other ranks continue without a
// restart. This file decides on the new members, the plan, and the source of its state. The process that
// hosts the run's store decides from the reports of the ranks (emergency_checkpoint.h), and all ranks apply
// the decision (run/rank_membership.cpp). Pure.
//
//   generation 0     workers 0 1 2 3 = ranks 0 1 2 3    dp4
//   worker 2 is killed
//   generation 1     workers 0 1 3   = ranks 0 1 2      dp3: masters and moments from the remaining ranks
//   worker 4 joins
//   generation 2     workers 0 1 3 4 = ranks 0 1 2 3    dp4
//
// A worker keeps its id for life; a rank is its number in one generation.
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
  // The source of the state. `live`: the ranks that have it. `checkpoint`: files, or hosts' memory.
  // `begin`: the initial state of the run.
  enum class Source { live, checkpoint, begin };

  Membership membership;  // leaving ranks come last
  int num_staying = 0;
  // Number of worker ids assigned so far, and thus the id of the next joining worker, whichever process
  // hosts the run then.
  int num_worker_ids = 0;
  // The state is laid out by the plan `from`, whose devices are ranks of the new membership; devices that
  // are lost or have no usable state are numbered after all ranks. `to` is the new plan, with the placement
  // that all ranks agree on.
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
  Membership membership;  // the membership that ends
  int num_staying = 0;    // number of members that stay; the members after them have left, or are about to
  // [epoch]: the plans by which state may be laid out; their devices are ranks of the old membership.
  std::map<std::int64_t, Plan> plans;
  std::vector<int> joining_workers;  // new worker ids
  std::map<int, std::string> lost;   // by worker id: a description of what happened
  std::vector<Phase> phases{};       // phases of the training; empty if it has only one
  // The newest complete checkpoint, if there is one.
  std::function<std::optional<std::pair<Path, TrainingState>>()> find_checkpoint;
  // Chooses the new plan. `state` is nullopt if all state is read from files.
  std::function<Feasible<Plan>(int num_devices, const std::optional<StateLocation>& state)> choose;
};

// Returns the decision, or the reason why the ranks cannot continue. `survivor_states` are the reports of
// ranks of the membership that ends.
tl::expected<MembershipChange, std::string> plan_membership_change(
    const MembershipChangeInputs& inputs, const std::vector<SurvivorState>& survivor_states);

}  // namespace optimus
