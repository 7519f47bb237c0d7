// PlanProposal: a plan that the adaptation controller wants to switch to, and the gain that it expects.
// StayDecision: why it keeps the present plan. Plain data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// A plan that was considered and not chosen.
struct PlanAlternative {
  std::string plan, response{};            // "pp2 tp2", "recut"
  std::optional<double> predicted_gain{};  // below 0: it would be slower
  bool operator==(const PlanAlternative&) const = default;
};

// State of a provisional proposal: a few slow steps are the only evidence for its conditions.
//   open       the detector has neither confirmed the conditions nor has it had enough time to do so
//   confirmed  the detector has found the same conditions
//   rejected   the conditions have passed, or they differ from those that the plan was chosen for
enum class ProvisionalStatus { open, confirmed, rejected };

struct PlanProposal {
  Plan plan;
  std::string why;  // the evidence, as text for users
  bool is_placed =
      false;  // the plan's devices are ranks; otherwise they are mapped so that least state moves
  bool is_provisional = false;  // prepare it now, but switch only when its status is `confirmed`
  double predicted_gain = 0;    // of steps per second: 0.38
  double payback_steps = 0;     // predicted number of steps until the pause is paid back
  std::string cause{};          // word_of(Cause); empty: no condition
  std::vector<PlanAlternative> alternatives{};
};

// Where the plan switches of a run take proposals from; the adaptation controller is one. Called after steps,
// on rank 0.
class ProposalSource {
 public:
  virtual ~ProposalSource() = default;
  virtual std::optional<PlanProposal> take_proposal() = 0;
  // Of the proposal taken last, while it is provisional and is being prepared.
  virtual ProvisionalStatus provisional_status() const = 0;
};

// The run keeps its plan although something slows it down.
struct StayDecision {
  std::string why, reason;  // the evidence; why no other plan is chosen
  std::string cause{};
  std::vector<PlanAlternative> alternatives{};
};

}  // namespace optimus
