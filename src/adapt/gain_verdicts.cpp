// Implements gain_verdicts.h.
#include "adapt/gain_verdicts.h"

#include <algorithm>
#include <cmath>

namespace optimus {

// Situation counts gains as fractions of the step time. The predicted gain may be negative, for a plan that
// adds a second copy of the state.
void GainTotals::add(double predicted_gain, double measured_gain) {
  const double miss = std::log((1 + predicted_gain) / (1 + measured_gain));
  ++num_prediction_errors;
  if (predicted_gain > 0) {
    ++num_judged_switches;
    promised += predicted_gain / (1 + predicted_gain), measured += measured_gain / (1 + measured_gain);
  }
  misses += miss, squares += miss * miss;
  shortfalls += std::pow(std::max(0.0, miss), 2);
}

double GainTotals::uncertainty() const {
  // Prior: a single wrong prediction does not make all predictions worthless.
  constexpr int kCorrectBefore = 3;
  return std::sqrt(shortfalls / (num_prediction_errors + kCorrectBefore));
}

void GainTotals::describe(Situation& situation) const {
  situation.switches = num_switches;
  situation.num_judged_switches = num_judged_switches,
  situation.num_prediction_errors = num_prediction_errors;
  situation.predicted_gain_sum = promised, situation.measured_gain_sum = measured;
  if (num_prediction_errors == 0) return;
  situation.mean_prediction_error = misses / num_prediction_errors;
  situation.prediction_error_spread =
      std::sqrt(std::max(0.0, squares / num_prediction_errors -
                                  situation.mean_prediction_error * situation.mean_prediction_error));
}

void GainVerdicts::begin(const std::optional<PlanProposal>& proposal, PendingProposal pending) {
  predicted_ = proposal ? std::optional(proposal->predicted_gain) : std::nullopt;
  measured_.reset();
  seconds_before_ = pending.step_seconds, pause_ = pending.pause;
  answered_ = proposal ? std::move(pending.conditions) : std::vector<Condition>();
  is_clouded_ = false, is_reported_ = !proposal;
  if (proposal) ++totals_.num_switches;
}

void GainVerdicts::measure(double step_seconds) {
  if (is_reported_ || measured_) return;
  measured_ = seconds_before_ / step_seconds - 1;
  explored_ += pause_ + std::max(0.0, step_seconds - seconds_before_) * 2 * kRecentSteps;
}

void GainVerdicts::judge() { totals_.add(*predicted_, *measured_); }

std::optional<double> GainVerdicts::verdict(int num_observations) const {
  return predicted_ && num_observations >= kVerdictObservations && !is_clouded_ ? measured_ : std::nullopt;
}

std::optional<double> GainVerdicts::take_verdict(int num_observations) {
  const std::optional<double> gain = verdict(num_observations);
  if (is_reported_ || !gain) return std::nullopt;
  is_reported_ = true;
  return gain;
}

double GainVerdicts::exploration_left(double now) const {
  constexpr double kExplored = 0.01;  // fraction of the run's time
  return std::max(0.0, kExplored * (now - begin_time_) - explored_);
}

}  // namespace optimus
