// When ranks of a run are lost, the others still hold masters and moments of some step. Here is decided whether these make a whole
// checkpoint, of which step, and who of them does what for it; and what they say to each other about it. Pure; the decision is made
// by the process that hosts the run's store (salvage_host.h), ranks do what it says (survivor.h).
//
//   rank 0    … gate 41 ✓  update  │ stands at 41, with the gate's sums
//   rank 1    … gate 41 ✗          │ stands at 40, with all gradients of 41: follows with these sums
//   rank 2    … killed             │                                         -> 0 and 1 store step 41
//
// A rank passes a step's gate only when all have brought their sums there, so whoever stands behind one that has passed has all
// gradients of that step and makes the same update. Steps are never mixed: who can neither be at the newest step nor follow to it
// counts as lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/save.h"
#include "checkpoint/training_state.h"

namespace optimus {

// What a rank says when it has lost others, or fails by itself.
struct Standing {
  int rank = 0;
  TrainingState state{};            // of the last step that its masters and moments have seen whole
  std::int64_t epoch = 0;           // of the plan that they lie as
  std::int64_t earlier_epoch = -1;  // they still lie as the plan of this one says, too; -1: they do not
  bool is_torn = false;             // they have seen part of another: they are worth nothing
  bool is_at_gate = false;          // all gradients of the next step are here
  std::vector<double> gate{};       // what the gate of state.step added up; empty: not known
  std::vector<int> missing{};       // ranks that did not answer
  bool leaves = false;              // it was asked to go
  std::string why_failed{};         // by itself; empty: it lost others, or nothing is wrong
};
std::string text(const Standing& standing);
// Throws UserError when it is no such text.
Standing parse_standing(const std::string& text);

struct SalvagePlan {
  std::int64_t step = 0;       // the newest that anybody stands at
  std::vector<int> ranks;      // that are at it, or follow to it; they store it all when nothing is lost
  std::vector<double> gate;    // for those who follow
  std::vector<HeldBox> lost;   // that none of them has
  std::vector<int> left_over;  // those who stand elsewhere
  bool is_whole() const { return !ranks.empty() && lost.empty(); }
};
// layout: of masters and moments, buddies' copies included. Standings of ranks that it does not name, or named twice, are passed over.
SalvagePlan plan_salvage(const Layout& layout, const std::vector<Standing>& standings);

// What the host answers to all: who stores what, and where. No ranks: nothing is stored.
struct SalvageOrder {
  std::int64_t step = 0;
  std::vector<int> ranks;  // the place of a rank here is its number among the writers
  std::vector<double> gate;
  Path folder;
};
std::string text(const SalvageOrder& order);
SalvageOrder parse_salvage_order(const std::string& text);

// What a rank says when it has stored its part.
struct SalvagePart {
  std::string why;  // it could not; empty: it is written
  TrainingState state;
  std::string metrics;  // of the step, as a line of metrics.jsonl; empty: this rank has none
};
std::string text(const SalvagePart& part);
SalvagePart parse_salvage_part(const std::string& text);

// Where these lie on the board, for each generation of a run's membership (regroup.h).
inline constexpr Seconds kBringPatience{600};  // for hosts to bring what they have in memory
struct SalvageKeys {
  int generation = 0;
  std::string somebody() const;  // when the first stands
  std::string standing(int rank) const;
  std::string part(int rank) const;
  std::string bring() const;  // what hosts have in their memory is asked for (host_memory.h)
  std::string brought(int rank) const;
  std::string order() const;    // what is to be stored
  std::string regroup() const;  // or how it goes on
};

// Numbers that read back exactly, also those that are not finite.
Json exact_numbers(const std::vector<double>& numbers);
std::vector<double> parse_exact_numbers(const JsonView& view);

// "layers.0.mlp.up.weight [0:16, 0:32], layers.0.mlp.down.weight [0:32, 0:16] and 14 more"
std::string lost_text(const Layout& layout, const std::vector<HeldBox>& lost);

}  // namespace optimus
