// When ranks are lost, the remaining ranks still have master weights and moments. This file decides whether
// these form a complete checkpoint, of which step, and which rank stores which boxes. It also defines the
// messages. The process that hosts the run's store makes the decision (emergency_checkpoint_host.h), and the
// ranks execute it (survivor.h). No side effects.
//
//   rank 0    … gate 41 ✓  update  │ is at step 41, with the gate's sums
//   rank 1    … gate 41 ✗          │ is at step 40, with all gradients of 41: catches up with these sums
//   rank 2    … killed             │                                         -> 0 and 1 store step 41
//
// The gate of a step is the reduction of the gradient sums before the update. A rank passes it only after all
// ranks have contributed their sums. So if one rank has passed the gate, all ranks at the gate have all
// gradients of the step and can perform the same update. Steps are never mixed: a rank that is not at the
// latest step and cannot catch up is treated as lost.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/save.h"
#include "checkpoint/training_state.h"

namespace optimus {

// The report of a rank that has lost contact with other ranks or has failed.
struct SurvivorState {
  int rank = 0;
  TrainingState state{};   // of the last step whose update is complete in its masters and moments
  std::int64_t epoch = 0;  // plan epoch that determines the layout of masters and moments
  // The earlier plan epoch for whose layout a copy of the state still exists, or -1.
  std::int64_t earlier_epoch = -1;
  bool is_torn = false;          // masters and moments are partially updated and cannot be used
  bool is_at_gate = false;       // it has all gradients of the next step
  std::vector<double> gate{};    // sums of the gate of state.step; empty if unknown
  std::vector<int> missing{};    // ranks that did not respond
  bool is_leaving = false;       // it was asked to leave
  std::string failure_reason{};  // why this rank failed; empty if it did not fail
};
std::string text(const SurvivorState& survivor_state);
// Throws UserError if the text is invalid.
SurvivorState parse_survivor_state(const std::string& text);

struct EmergencyCheckpointPlan {
  std::int64_t step = 0;  // the newest step that any rank has
  // Ranks that have this step or can catch up to it. If nothing is lost, they have the complete state.
  std::vector<int> ranks;
  std::vector<double> gate;         // for ranks that catch up
  std::vector<TensorBox> lost;      // boxes that none of these ranks has
  std::vector<int> outdated_ranks;  // ranks at another step
  bool is_whole() const { return !ranks.empty() && lost.empty(); }
};
// `layout` is the layout of masters and moments, including redundant copies. Reports of ranks that are not in
// the layout are ignored, and so are duplicates.
EmergencyCheckpointPlan plan_emergency_checkpoint(const Layout& layout,
                                                  const std::vector<SurvivorState>& survivor_states);

// The host's response to all ranks: which ranks store their state, and where. If `ranks` is empty, no state
// is stored.
struct EmergencyCheckpointOrder {
  std::int64_t step = 0;
  std::vector<int> ranks;  // a rank's writer index is its index in this list
  std::vector<double> gate;
  Path folder;
};
std::string text(const EmergencyCheckpointOrder& order);
EmergencyCheckpointOrder parse_emergency_checkpoint_order(const std::string& text);

// A rank's report after it has stored its part of the checkpoint.
struct EmergencyCheckpointPart {
  std::string why;  // why it failed; empty if the part is written
  TrainingState state;
  std::string metrics;  // metrics of the step, as a line of metrics.jsonl; empty if this rank has none
};
std::string text(const EmergencyCheckpointPart& part);
EmergencyCheckpointPart parse_emergency_checkpoint_part(const std::string& text);

// Board keys for a membership generation (membership.h).
inline constexpr Seconds kExportTimeout{600};  // for hosts to copy the checkpoints in their memory
struct RecoveryKeys {
  int generation = 0;
  std::string first_report() const;  // set by the first rank that reports
  std::string survivor_state(int rank) const;
  std::string part(int rank) const;
  std::string export_request() const;  // asks hosts for the checkpoints in their memory (host_memory.h)
  std::string exported(int rank) const;
  std::string order() const;  // which ranks store their state
  std::string change_membership()
      const;  // the alternative to order(): the MembershipChange with which the run continues
};

// Serializes numbers exactly, including non-finite numbers.
Json exact_numbers(const std::vector<double>& numbers);
std::vector<double> parse_exact_numbers(const JsonView& view);

// "layers.0.mlp.up.weight [0:16, 0:32], layers.0.mlp.down.weight [0:32, 0:16] and 14 more"
std::string lost_text(const Layout& layout, const std::vector<TensorBox>& lost);

}  // namespace optimus
