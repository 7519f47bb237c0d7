// When ranks of a run are lost, come or leave, the others go on without a restart: who they are then, which plan they are on, and where
// its state comes from. Decided by the process that hosts the run's store, from what the ranks say of themselves (salvage.h), and done
// by all of them alike (run/rank_regroup.cpp). Pure.
//
//   generation 0     seats 0 1 2 3 = ranks 0 1 2 3        dp4
//   seat 2 is killed
//   generation 1     seats 0 1 3   = ranks 0 1 2          dp3: masters and moments from those who have them
//   seat 4 comes
//   generation 2     seats 0 1 3 4 = ranks 0 1 2 3        dp4
//
// A seat is a process's number for life, a rank its number in a generation.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "elastic/first_answer.h"
#include "elastic/membership.h"
#include "elastic/salvage.h"
#include "plan/phase.h"
#include "plan/plan.h"

namespace optimus {

struct RegroupOrder {
  // live: of the ranks that have it. checkpoint: of files, also those in memory. begin: as the run began.
  enum class Source { live, checkpoint, begin };

  Membership membership;  // those who leave come last
  int num_staying = 0;
  int num_seats = 0;  // that were ever taken: the next to come has this one, whoever hosts the run then
  // State lies as `from` says, whose devices are ranks of the new membership; those of who is gone, or has nothing of use, come behind
  // all ranks. `to` has the places that all agree on.
  Plan from, to;
  Source source = Source::live;
  Path checkpoint{};
  TrainingState state{};       // that all stand at then
  std::int64_t epoch = 0;      // of `from`; `to` is the next
  std::vector<double> gate{};  // for those who are a step behind
  std::int64_t num_steps_lost = 0;
  std::string kind{};  // recover, drain, join: as decisions call it
  std::string what{};  // who was lost, came or left, for people
};
std::string text(const RegroupOrder& order);
// Thrown where a rank learns that the others have gone on without it.
struct LeftBehind {};
// Throws UserError when it is no such text.
RegroupOrder parse_regroup_order(const std::string& text);

struct RegroupFacts {
  const ModelSpec& model;
  Membership membership;               // that ends
  int num_staying = 0;                 // of it: those behind have left, or are about to
  std::map<std::int64_t, Plan> plans;  // [epoch]: those that state may lie as; devices are its ranks
  std::vector<int> comers;             // new seats
  std::map<int, std::string> lost;     // seats, and what became of them
  std::vector<Phase> phases{};         // of the training; none: it has one
  // The newest whole checkpoint, if there is one.
  std::function<std::optional<std::pair<Path, TrainingState>>()> find_checkpoint;
  // state: nothing where all of it comes from files. Throws UserError.
  std::function<Plan(int num_devices, const std::optional<WhereStateIs>& state)> choose;
};

// The order, or why they cannot go on. standings: of ranks of the membership that ends.
tl::expected<RegroupOrder, std::string> plan_regroup(const RegroupFacts& facts,
                                                     const std::vector<Standing>& standings);

}  // namespace optimus
