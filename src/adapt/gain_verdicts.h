// GainVerdicts: compares the predicted gains of adopted proposals with the measured gains. It determines
// whether the last switch has paid off and how reliable predictions are.
//
// A verdict requires kVerdictObservations observations of the new plan. If an unrelated condition slows the
// plan down in the meantime, the measurement is *unreliable* and there is no verdict. Pure; one thread at a
// time.
#pragma once

#include <optional>
#include <vector>

#include "adapt/pending_proposal.h"
#include "adapt/plan_history.h"
#include "policy/situation.h"

namespace optimus {

// Number of observations of a new plan after which the detector has found any condition that existed when the
// plan started.
constexpr int kVerdictObservations = kSettlingObservations + 2 * static_cast<int>(kRecentSteps);

// Sums over all adopted proposals of a run.
struct GainTotals {
  int num_switches = 0;         // all adopted proposals
  int num_judged_switches = 0;  // proposals with a predicted gain and a verdict
  // Sums over these switches of the time saved as a fraction of the step, 1 - 1 / (1 + gain).
  double predicted_gain_sum = 0, measured_gain_sum = 0;
  int num_prediction_errors = 0;  // proposals with a verdict
  // Sums of log(measured seconds / predicted seconds), and of its square, over these proposals.
  double error_sum = 0, squared_error_sum = 0;
  double squared_shortfall_sum = 0;  // sum of the squares over plans that were slower than predicted

  // Both gains are relative increases in steps per second.
  void add(double predicted_gain, double measured_gain);
  // The uncertainty of predictions for plans that have not run. The prior assumes a few correct predictions.
  double uncertainty() const;
  void describe(Situation& situation) const;
};

class GainVerdicts {
 public:
  explicit GainVerdicts(double now) : begin_time_(now) {}

  // Called when the run has switched to a new plan. `proposal` is empty if the controller did not propose it.
  void begin(const std::optional<PlanProposal>& proposal, PendingProposal pending);
  // Sets the measured step time of the plan. Only the first call has an effect.
  void measure(double step_seconds);
  void mark_unreliable() { is_unreliable_ = true; }
  void judge();  // adds the verdict to the totals; verdict() must not be empty

  // The measured gain of the last proposal. Returns nullopt until it is known, and if it is unreliable.
  std::optional<double> verdict(int num_observations) const;
  // Like verdict(), but returns the gain of each proposal only once.
  std::optional<double> take_verdict(int num_observations);
  bool has_missed_gain(int num_observations) const {
    return optimus::has_missed_gain(predicted_gain_, verdict(num_observations));
  }

  const std::optional<double>& predicted_gain() const { return predicted_gain_; }
  const std::optional<double>& measured_gain() const { return measured_gain_; }
  const std::vector<Condition>& answered_conditions() const { return answered_conditions_; }
  double seconds_before() const { return seconds_before_; }
  const GainTotals& totals() const { return totals_; }
  // Seconds that the run may still spend on trying plans with uncertain gains.
  double exploration_left(double now) const;

 private:
  const double begin_time_;  // by the controller's clock
  std::optional<double> predicted_gain_, measured_gain_;
  double seconds_before_ = 0;  // of a step before the switch, under the conditions that the switch answers
  double pause_ = 0;           // predicted pause in seconds
  std::vector<Condition> answered_conditions_;
  bool is_unreliable_ = false, is_reported_ = true;
  // Seconds lost so far to pauses and to steps on plans that turned out to be slower.
  double exploration_seconds_ = 0;
  GainTotals totals_;
};

}  // namespace optimus
