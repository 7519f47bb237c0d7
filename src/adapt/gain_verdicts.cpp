// Implements gain_verdicts.h.
#include "adapt/gain_verdicts.h"

#include <algorithm>
#include <cmath>

namespace optimus {

// Situation stores gains as fractions of the step time. The predicted gain of a plan that adds a second copy
// of the state may be negative.
void GainTotals::add(double predicted_gain, double measured_gain) {
  const double error = std::log((1 + predicted_gain) / (1 + measured_gain));
  ++num_prediction_errors;
  if (predicted_gain > 0) {
    ++num_judged_switches;
    predicted_gain_sum += predicted_gain / (1 + predicted_gain),
        measured_gain_sum += measured_gain / (1 + measured_gain);
  }
  error_sum += error, squared_error_sum += error * error;
  squared_shortfall_sum += std::pow(std::max(0.0, error), 2);
}

double GainTotals::uncertainty() const {
  // A prior, so that a single wrong prediction does not make all predictions unreliable.
  constexpr int kPriorCorrectPredictions = 3;
  return std::sqrt(squared_shortfall_sum / (num_prediction_errors + kPriorCorrectPredictions));
}

void GainTotals::describe(Situation& situation) const {
  situation.switches = num_switches;
  situation.num_judged_switches = num_judged_switches,
  situation.num_prediction_errors = num_prediction_errors;
  situation.predicted_gain_sum = predicted_gain_sum, situation.measured_gain_sum = measured_gain_sum;
  if (num_prediction_errors == 0) return;
  situation.mean_prediction_error = error_sum / num_prediction_errors;
  situation.prediction_error_spread =
      std::sqrt(std::max(0.0, squared_error_sum / num_prediction_errors -
                                  situation.mean_prediction_error * situation.mean_prediction_error));
}

void GainVerdicts::begin(const std::optional<PlanProposal>& proposal, PendingProposal pending) {
  predicted_gain_ = proposal ? std::optional(proposal->predicted_gain) : std::nullopt;
  measured_gain_.reset();
  seconds_before_ = pending.step_seconds, pause_ = pending.pause;
  answered_conditions_ = proposal ? std::move(pending.conditions) : std::vector<Condition>();
  is_unreliable_ = false, is_reported_ = !proposal;
  if (proposal) ++totals_.num_switches;
}

void GainVerdicts::measure(double step_seconds) {
  if (is_reported_ || measured_gain_) return;
  measured_gain_ = seconds_before_ / step_seconds - 1;
  exploration_seconds_ += pause_ + std::max(0.0, step_seconds - seconds_before_) * 2 * kRecentSteps;
}

void GainVerdicts::judge() { totals_.add(*predicted_gain_, *measured_gain_); }

std::optional<double> GainVerdicts::verdict(int num_observations) const {
  return predicted_gain_ && num_observations >= kVerdictObservations && !is_unreliable_ ? measured_gain_
                                                                                        : std::nullopt;
}

std::optional<double> GainVerdicts::take_verdict(int num_observations) {
  const std::optional<double> gain = verdict(num_observations);
  if (is_reported_ || !gain) return std::nullopt;
  is_reported_ = true;
  return gain;
}

double GainVerdicts::exploration_left(double now) const {
  constexpr double kExplorationFraction = 0.01;  // fraction of the run's time
  return std::max(0.0, kExplorationFraction * (now - begin_time_) - exploration_seconds_);
}

}  // namespace optimus
