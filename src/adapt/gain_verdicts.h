// GainVerdicts: compares the predicted gains of adopted proposals with the measured ones. It tells whether
// the last switch has paid off, and how far predictions can be trusted.
//
// A verdict takes kVerdictObservations observations of the new plan. There is none if something else has
// slowed the plan down meanwhile: the measurement is then *clouded*. Pure; one thread at a time.
#pragma once

#include <optional>
#include <vector>

#include "adapt/pending_proposal.h"
#include "adapt/plan_history.h"
#include "policy/situation.h"

namespace optimus {

// Number of observations of a new plan after which the detector would have found anything that slows the
// run down since the plan began.
constexpr int kVerdictObservations = kSettlingObservations + 2 * static_cast<int>(kRecentSteps);

// Sums over all adopted proposals of a run.
struct GainTotals {
  int num_switches = 0;         // all adopted proposals
  int num_judged_switches = 0;  // those with a predicted gain and a verdict
  // Sums over those: the time saved as a fraction of the step, 1 - 1 / (1 + gain).
  double promised = 0, measured = 0;
  int num_prediction_errors = 0;  // those with a verdict
  // Sums over those: log(measured seconds / predicted seconds), and its square.
  double misses = 0, squares = 0;
  double shortfalls = 0;  // sum of the squares over those that were slower than predicted

  // Both gains are of steps per second.
  void add(double predicted_gain, double measured_gain);
  // Uncertainty of predictions for plans that have not run; some correct predictions are assumed as a prior.
  double uncertainty() const;
  void describe(Situation& situation) const;
};

class GainVerdicts {
 public:
  explicit GainVerdicts(double now) : begin_time_(now) {}

  // The run is on a new plan. proposal: null if it was not proposed by the controller.
  void begin(const std::optional<PlanProposal>& proposal, PendingProposal pending);
  // Reports the plan's step time. May be called repeatedly; only the first value counts.
  void measure(double step_seconds);
  void mark_clouded() { is_clouded_ = true; }
  void judge();  // adds the verdict to the totals; verdict() must not be empty

  // The measured gain of the last proposal. Empty before it is known, and if it is clouded.
  std::optional<double> verdict(int num_observations) const;
  // The same, once for each proposal.
  std::optional<double> take_verdict(int num_observations);
  bool has_missed_gain(int num_observations) const {
    return optimus::has_missed_gain(predicted_, verdict(num_observations));
  }

  const std::optional<double>& predicted_gain() const { return predicted_; }
  const std::optional<double>& measured_gain() const { return measured_; }
  const std::vector<Condition>& answered_conditions() const { return answered_; }
  double seconds_before() const { return seconds_before_; }
  const GainTotals& totals() const { return totals_; }
  // Seconds that the run may spend on switches that are only likely to help.
  double exploration_left(double now) const;

 private:
  const double begin_time_;  // by the controller's clock
  std::optional<double> predicted_, measured_;
  double seconds_before_ = 0;  // of a step before the switch, under the conditions that the switch answers
  double pause_ = 0;           // predicted pause in seconds
  std::vector<Condition> answered_;
  bool is_clouded_ = false, is_reported_ = true;
  double explored_ = 0;  // seconds lost so far to pauses and to steps on plans that turned out worse
  GainTotals totals_;
};

}  // namespace optimus
