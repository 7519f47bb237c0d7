// PlanProposal: a plan that the adaptation controller proposes to switch to, with the expected gain.
// StayDecision: the decision to keep the current plan. Plain data.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace optimus {

// A plan that was considered and not chosen.
struct PlanAlternative {
  std::string plan, response{};            // for example "pp2 tp2" and "drop devices"
  std::optional<double> predicted_gain{};  // negative if it would be slower
  bool operator==(const PlanAlternative&) const = default;
};

// A finding as decisions record it.
struct RecordedFinding {
  std::string cause;             // word_of(Cause)
  std::vector<int> locations{};  // as in Condition
  double factor = 1;             // by which it slows the run down
  std::int64_t begin_step = 0;   // the first slow step
  bool operator==(const RecordedFinding&) const = default;
};

// Status of a provisional proposal, whose conditions have been observed in only a few steps.
//   open       the detector has not confirmed the conditions yet, but still may
//   confirmed  the detector has found the same conditions
//   rejected   the conditions have passed, or they differ from those that the plan was chosen for
enum class ProvisionalStatus { open, confirmed, rejected };

struct PlanProposal {
  Plan plan;
  std::string why;  // the evidence, as a message for users
  // Whether the device indices of the plan are ranks. Otherwise devices are mapped to ranks so that the least
  // state moves.
  bool is_placed = false;
  bool is_provisional = false;  // prepare it now, but switch only when its status is `confirmed`
  double predicted_gain = 0;    // relative gain in steps per second; 0.38 means 38 % faster
  double payback_steps = 0;     // predicted number of steps until the gain has made up for the pause
  std::string cause{};          // word_of(Cause); empty if there is no condition
  std::vector<RecordedFinding> findings{};
  std::vector<PlanAlternative> alternatives{};
};

// A source of plan proposals for a run, such as the adaptation controller. Called on rank 0 after each step.
class ProposalSource {
 public:
  virtual ~ProposalSource() = default;
  virtual std::optional<PlanProposal> take_proposal() = 0;
  // The status of the last proposal that was taken, while it is provisional and being prepared.
  virtual ProvisionalStatus provisional_status() const = 0;
};

// The decision to keep the plan although something slows the run down.
struct StayDecision {
  std::string why, reason;  // `why` is the evidence; `reason` explains why no other plan is chosen
  std::string cause{};
  std::vector<RecordedFinding> findings{};
  std::vector<PlanAlternative> alternatives{};
};

}  // namespace optimus
