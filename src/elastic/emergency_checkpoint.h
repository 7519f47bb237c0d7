// When ranks of a run are lost, the others still have masters and moments of some step. This part decides
// whether these form a complete checkpoint, of which step, and which rank stores what; it also defines the
// messages for that. Pure: the process that hosts the run's store decides (emergency_checkpoint_host.h),
// ranks carry it out (survivor.h).
//
//   rank 0    … gate 41 ✓  update  │ is at step 41, with the gate's sums
//   rank 1    … gate 41 ✗          │ is at step 40, with all gradients of 41: catches up with these sums
//   rank 2    … killed             │                                         -> 0 and 1 store step 41
//
// A rank passes a step's gate only after all ranks have contributed their sums to it, so every rank at a
// passed gate has all gradients of that step and makes the same update. Steps are never mixed: a rank that is
// not at the newest step and cannot catch up to it counts as lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/save.h"
#include "checkpoint/training_state.h"

namespace optimus {

// What a rank reports when it has lost others, or has failed itself.
struct SurvivorState {
  int rank = 0;
  TrainingState state{};   // of the last step whose update is complete in its masters and moments
  std::int64_t epoch = 0;  // of the plan that they are laid out as
  // they are still also laid out as the plan of this epoch; -1: they are not
  std::int64_t earlier_epoch = -1;
  bool is_torn = false;          // they contain part of another update and cannot be used
  bool is_at_gate = false;       // it has all gradients of the next step
  std::vector<double> gate{};    // sums of the gate of state.step; empty: not known
  std::vector<int> missing{};    // ranks that did not respond
  bool is_leaving = false;       // it was asked to leave
  std::string failure_reason{};  // its own failure; empty: it lost others, or nothing is wrong
};
std::string text(const SurvivorState& survivor_state);
// Throws UserError for an invalid text.
SurvivorState parse_survivor_state(const std::string& text);

struct EmergencyCheckpointPlan {
  std::int64_t step = 0;     // the newest step that any rank has
  std::vector<int> ranks;    // ranks that have it or catch up to it; they store all state if nothing is lost
  std::vector<double> gate;  // for ranks that catch up
  std::vector<TensorBox> lost;      // boxes that none of them has
  std::vector<int> outdated_ranks;  // ranks at another step
  bool is_whole() const { return !ranks.empty() && lost.empty(); }
};
// layout: of masters and moments, including redundant copies. Reports of ranks that are not in it, and
// duplicates, are ignored.
EmergencyCheckpointPlan plan_emergency_checkpoint(const Layout& layout,
                                                  const std::vector<SurvivorState>& survivor_states);

// The host's answer to all ranks: which ranks store, and where. No ranks: nothing is stored.
struct EmergencyCheckpointOrder {
  std::int64_t step = 0;
  std::vector<int> ranks;  // the writer number of a rank is its index here
  std::vector<double> gate;
  Path folder;
};
std::string text(const EmergencyCheckpointOrder& order);
EmergencyCheckpointOrder parse_emergency_checkpoint_order(const std::string& text);

// A rank's report after it has stored its part.
struct EmergencyCheckpointPart {
  std::string why;  // why it failed; empty: the part is written
  TrainingState state;
  std::string metrics;  // of the step, as a line of metrics.jsonl; empty: this rank has none
};
std::string text(const EmergencyCheckpointPart& part);
EmergencyCheckpointPart parse_emergency_checkpoint_part(const std::string& text);

// Keys on the board, per generation of the run's membership (membership.h).
inline constexpr Seconds kExportTimeout{600};  // for hosts to copy what they have in memory
struct RecoveryKeys {
  int generation = 0;
  std::string first_report() const;  // set by the first rank that reports
  std::string survivor_state(int rank) const;
  std::string part(int rank) const;
  std::string export_request() const;  // asks hosts for the checkpoints in their memory (host_memory.h)
  std::string exported(int rank) const;
  std::string order() const;              // what must be stored
  std::string change_membership() const;  // or how the run continues
};

// Serializes numbers exactly, including those that are not finite.
Json exact_numbers(const std::vector<double>& numbers);
std::vector<double> parse_exact_numbers(const JsonView& view);

// "layers.0.mlp.up.weight [0:16, 0:32], layers.0.mlp.down.weight [0:32, 0:16] and 14 more"
std::string lost_text(const Layout& layout, const std::vector<TensorBox>& lost);

}  // namespace optimus
