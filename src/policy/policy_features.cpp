// Implements policy_features.h.
#include "policy/policy_features.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "policy/lifetime.h"

namespace optimus {
namespace {

constexpr double kHour = 3600, kMaxRemainingSeconds = 36'000;

double clamped(double value, double limit) { return std::clamp(value, -limit, limit); }
double log_seconds(double seconds) { return std::log10(1 + std::clamp(seconds, 0.0, 1e7)); }

double upper_tail(double z) { return 0.5 * std::erfc(z / std::numbers::sqrt2); }

// The closed form of expected_remaining_seconds() (policy/lifetime.h). It is faster, which matters because
// the training of the network makes many decisions.
double closed_form_remaining_seconds(Cause cause, double age) {
  const Lifetime lifetime = usual_lifetime(cause);
  if (lifetime.is_endless) return kMaxRemainingSeconds;
  const double z = std::log(std::max(age, 1e-9) / lifetime.median) / lifetime.spread;
  const double survival = upper_tail(z);
  if (survival < 1e-9) return kMaxRemainingSeconds;
  const double mean = lifetime.median * std::exp(lifetime.spread * lifetime.spread / 2);
  return std::clamp(mean * upper_tail(z - lifetime.spread) / survival - age, 1.0, kMaxRemainingSeconds);
}

// Expected seconds until the situation changes because a condition ends or a device is lost or joins. Losses
// and arrivals are expected at the rate of the last hour.
double likely_remaining_seconds(const Situation& situation) {
  double remaining_seconds = kMaxRemainingSeconds;
  const double observed_seconds = std::clamp(situation.elapsed_seconds, 60.0, kHour);
  const double changes = situation.losses_last_hour + situation.arrivals_last_hour;
  remaining_seconds = std::min(remaining_seconds, (observed_seconds + 600) / (changes + 0.1));
  for (const OngoingCondition& condition : situation.conditions)
    remaining_seconds =
        std::min(remaining_seconds, closed_form_remaining_seconds(condition.cause, condition.age));
  return std::max(remaining_seconds, 1.0);
}

// Estimates of log(lasting_seconds()) for each option. The values are undefined for options that cannot run.
struct Estimates {
  std::vector<double> predicted;  // from the latest prediction
  std::vector<double> corrected;  // from all predictions, corrected by the errors of earlier ones
  std::vector<double> smooth;     // mean over plans with nearly as many devices
  std::vector<double> spread;     // standard deviation over these plans
};

bool runs(const PlanOption& option) { return option.step_seconds > 0; }

// How much the logarithm of the step time increases because losses undo a fraction of the steps.
double undone_log(const PlanOption& option, const Situation& situation) {
  return -std::log1p(-undone_part(situation, option));
}

// The mean prediction, corrected by the mean error of earlier predictions. The prior is one prediction
// without error.
double corrected_estimate(const PlanOption& option, const Situation& situation) {
  const double undone = undone_log(option, situation);
  if (option.is_measured || option.response == Response::stay) return std::log(option.step_seconds) + undone;
  const double predicted =
      std::log(option.mean_predicted_seconds > 0 ? option.mean_predicted_seconds : option.step_seconds);
  return predicted + undone +
         situation.mean_prediction_error * situation.num_prediction_errors /
             (situation.num_prediction_errors + 1.0);
}

// Plans with similar numbers of devices should need similar device time per step. Computes the mean and the
// spread of the device time over such plans.
void smooth_by_devices(const Situation& situation, Estimates& estimates) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < situation.options.size(); ++i)
    if (runs(situation.options[i]) && situation.options[i].devices > 0) order.push_back(i);
  const auto devices = [&](std::size_t position) { return situation.options[order[position]].devices; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return situation.options[a].devices < situation.options[b].devices;
  });
  constexpr std::ptrdiff_t kNumNeighbors = 3;
  for (std::ptrdiff_t position = 0; position < std::ssize(order); ++position) {
    const auto index = static_cast<std::size_t>(position);
    double sum = 0, squares = 0, count = 0;
    for (std::ptrdiff_t neighbor = std::max<std::ptrdiff_t>(0, position - kNumNeighbors);
         neighbor <= std::min(std::ssize(order) - 1, position + kNumNeighbors); ++neighbor) {
      const auto near_index = static_cast<std::size_t>(neighbor);
      const bool are_alike = (situation.options[order[near_index]].undone_steps > 0) ==
                             (situation.options[order[index]].undone_steps > 0);
      if (near_index != index &&
          (!are_alike || devices(near_index) == devices(index) ||
           devices(near_index) > 1.3 * devices(index) || devices(index) > 1.3 * devices(near_index)))
        continue;
      const double work = estimates.corrected[order[near_index]] + std::log(devices(near_index));
      sum += work, squares += work * work, ++count;
    }
    const double mean = sum / count;
    estimates.smooth[order[index]] = mean - std::log(devices(index));
    estimates.spread[order[index]] = std::sqrt(std::max(0.0, squares / count - mean * mean));
  }
}

Estimates estimates_of(const Situation& situation) {
  const std::size_t num_options = situation.options.size();
  Estimates estimates{std::vector<double>(num_options, 0), {}, {}, std::vector<double>(num_options, 0)};
  for (std::size_t i = 0; i < num_options; ++i)
    if (runs(situation.options[i]))
      estimates.predicted[i] =
          std::log(situation.options[i].step_seconds) + undone_log(situation.options[i], situation);
  estimates.corrected = estimates.predicted;
  for (std::size_t i = 0; i < num_options; ++i)
    if (runs(situation.options[i]))
      estimates.corrected[i] = corrected_estimate(situation.options[i], situation);
  estimates.smooth = estimates.corrected;
  smooth_by_devices(situation, estimates);
  return estimates;
}

// Selects the current plan if it can run, plans that ran before, and then the fastest options, in turn by
// each of the three estimates.
std::vector<std::size_t> promising_options(const Situation& situation, const Estimates& estimates) {
  std::vector<std::size_t> chosen;
  if (runs(situation.options.front())) chosen.push_back(0);
  std::vector<std::size_t> runnable;
  for (std::size_t i = 1; i < situation.options.size(); ++i)
    if (runs(situation.options[i])) runnable.push_back(i);
  if (runnable.size() + chosen.size() <= kMaxRows) {
    chosen.insert(chosen.end(), runnable.begin(), runnable.end());
    return chosen;
  }
  const auto add_best = [&](const std::vector<double>& estimate, std::size_t max_count) {
    std::vector<std::size_t> order = runnable;
    const std::size_t num_best = std::min(max_count, order.size());
    std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(num_best), order.end(),
                      [&](std::size_t a, std::size_t b) {
                        return estimate[a] != estimate[b] ? estimate[a] < estimate[b] : a < b;
                      });
    for (std::size_t i = 0; i < num_best && chosen.size() < kMaxRows; ++i)
      if (std::find(chosen.begin(), chosen.end(), order[i]) == chosen.end()) chosen.push_back(order[i]);
  };
  for (const std::size_t i : runnable)
    if (situation.options[i].response == Response::resume) chosen.push_back(i);
  add_best(estimates.corrected, 5), add_best(estimates.smooth, 4), add_best(estimates.predicted, 4);
  return chosen;
}

struct SharedInputs {
  const Situation& situation;
  const Estimates& estimates;
  double log_present_seconds;  // logarithm of the step time with which options are compared
  double remaining_seconds;    // expected seconds until the situation changes
  double best_corrected, best_predicted;
  bool is_broken;           // the current plan cannot run
  int num_present_devices;  // devices of the largest plan that can run now
};

SharedInputs shared_inputs_of(const Situation& situation, const Estimates& estimates) {
  SharedInputs shared{situation,
                      estimates,
                      0,
                      likely_remaining_seconds(situation),
                      1e9,
                      1e9,
                      !runs(situation.options.front()),
                      0};
  int max_devices = 1;
  for (std::size_t i = 0; i < situation.options.size(); ++i) {
    if (!runs(situation.options[i])) continue;
    shared.best_corrected = std::min(shared.best_corrected, estimates.corrected[i]);
    shared.best_predicted = std::min(shared.best_predicted, estimates.predicted[i]);
    max_devices = std::max(max_devices, situation.options[i].devices);
  }
  shared.log_present_seconds = shared.is_broken ? shared.best_corrected : estimates.predicted.front();
  shared.num_present_devices = std::max(max_devices, situation.devices_present);
  return shared;
}

std::array<float, kOptionFeatures> row_of(const SharedInputs& shared, std::size_t i) {
  const Situation& situation = shared.situation;
  const PlanOption &option = situation.options[i], &present = situation.options.front();
  const double predicted = shared.log_present_seconds - shared.estimates.predicted[i],
               corrected = shared.log_present_seconds - shared.estimates.corrected[i],
               smooth = shared.log_present_seconds - shared.estimates.smooth[i];
  const double uncertainty =
      option.uncertainty / std::sqrt(option.prediction_spread > 1e-6 ? option.num_predictions : 1);
  const double pause = option.pause_seconds, remaining_seconds = shared.remaining_seconds,
               step = std::exp(shared.log_present_seconds);
  const double usual_gain = shared.is_broken ? 0 : std::log(present.usual_seconds / option.usual_seconds);
  const double devices = std::max(1, option.devices);
  const double devices_before = shared.is_broken ? shared.num_present_devices : std::max(1, present.devices);
  const std::array<double, kOptionFeatures> row = {
      i == 0 ? 1.0 : 0.0,
      clamped(predicted, 2),
      clamped(corrected, 2),
      clamped(smooth, 2),
      5 * clamped(shared.estimates.spread[i], 0.5),
      10 * clamped(uncertainty, 0.5),
      std::log1p(option.num_predictions) / 3,
      10 * clamped(option.prediction_spread, 0.5),
      option.is_measured ? 1.0 : 0.0,
      clamped(pause / remaining_seconds, 3),
      clamped(1 - std::exp(-corrected) - pause / remaining_seconds, 2),
      clamped(1 - std::exp(-corrected) - pause / kHour, 2),
      std::log1p(pause / step) / 3,
      clamped(usual_gain, 2),
      clamped(std::log(devices / devices_before), 3),
      (shared.num_present_devices - devices) / shared.num_present_devices,
      option.response == Response::resume ? 1.0 : 0.0,
      option.response == Response::drop ? 1.0 : 0.0,
      option.response == Response::share || option.response == Response::recut ? 1.0 : 0.0,
      clamped(shared.estimates.corrected[i] - shared.best_corrected, 2),
      clamped(shared.estimates.predicted[i] - shared.best_predicted, 2),
      clamped(1 - std::exp(-(corrected - uncertainty)) - pause / remaining_seconds, 2),
      std::log1p(option.undone_steps) / 6,
      undone_part(situation, option),
  };
  std::array<float, kOptionFeatures> result{};
  std::transform(row.begin(), row.end(), result.begin(), [](double x) { return static_cast<float>(x); });
  return result;
}

std::array<float, kSituationFeatures> shared_row(const SharedInputs& shared) {
  const Situation& situation = shared.situation;
  double largest_factor = 1, newest = 1e7, links = 0;
  for (const OngoingCondition& condition : situation.conditions)
    largest_factor = std::max(largest_factor, condition.factor), newest = std::min(newest, condition.age),
    links += condition.cause == Cause::link;
  const double num_conditions = static_cast<double>(situation.conditions.size()),
               step = std::exp(shared.log_present_seconds);
  const double num_used_devices = shared.is_broken ? 0 : situation.options.front().devices;
  const double shortfall = situation.predicted_gain && situation.measured_gain
                               ? *situation.predicted_gain - *situation.measured_gain
                               : 0;
  const std::array<double, kSituationFeatures> row = {
      shared.is_broken ? 1.0 : 0.0,
      log_seconds(situation.since_switch) / 4,
      log_seconds(situation.since_loss) / 4,
      log_seconds(situation.since_arrival) / 4,
      std::log1p(situation.losses_last_hour) / 3,
      std::log1p(situation.arrivals_last_hour) / 3,
      std::min(num_conditions, 8.0) / 4,
      clamped(std::log(largest_factor), 2),
      num_conditions > 0 ? log_seconds(newest) / 4 : 0,
      num_conditions > 0 ? links / num_conditions : 0,
      log_seconds(shared.remaining_seconds) / 4,
      clamped(std::log(step / shared.remaining_seconds) / 5, 3),
      std::log1p(situation.recovery_seconds / step) / 3,
      (shared.num_present_devices - num_used_devices) / shared.num_present_devices,
      std::log1p(situation.switches / std::max(situation.elapsed_seconds / kHour, 1.0)) / 3,
      clamped(shortfall, 1),
      clamped(situation.mean_prediction_error, 1),
      5 * clamped(situation.prediction_error_spread, 0.5),
  };
  std::array<float, kSituationFeatures> result{};
  std::transform(row.begin(), row.end(), result.begin(), [](double x) { return static_cast<float>(x); });
  return result;
}

}  // namespace

const std::array<const char*, kFeatures>& feature_names() {
  static constexpr std::array<const char*, kFeatures> kNames = {"keeps plan",
                                                                "predicted gain",
                                                                "expected gain",
                                                                "gain of similar plans",
                                                                "spread of similar plans",
                                                                "doubt",
                                                                "predictions",
                                                                "spread of predictions",
                                                                "measured",
                                                                "pause / remaining time",
                                                                "net gain in remaining time",
                                                                "net gain in an hour",
                                                                "pause in steps",
                                                                "usual gain",
                                                                "devices",
                                                                "spare devices",
                                                                "returns",
                                                                "drops devices",
                                                                "shares or recuts",
                                                                "slower than best expected",
                                                                "slower than best predicted",
                                                                "net gain minus doubt",
                                                                "steps undone by a loss",
                                                                "part undone by losses",
                                                                "cannot run",
                                                                "since switch",
                                                                "since loss",
                                                                "since arrival",
                                                                "losses",
                                                                "arrivals",
                                                                "conditions",
                                                                "worst factor",
                                                                "newest age",
                                                                "part of links",
                                                                "remaining time",
                                                                "step / remaining time",
                                                                "recovery in steps",
                                                                "unused devices",
                                                                "switches",
                                                                "shortfall",
                                                                "mean miss",
                                                                "spread of misses"};
  return kNames;
}

Situation without_prediction_errors(Situation situation) {
  const Situation unknown;
  situation.num_prediction_errors = unknown.num_prediction_errors,
  situation.mean_prediction_error = unknown.mean_prediction_error;
  situation.prediction_error_spread = unknown.prediction_error_spread;
  situation.predicted_gain = situation.measured_gain = std::nullopt;
  for (PlanOption& option : situation.options)
    option.mean_predicted_seconds = option.step_seconds, option.num_predictions = 1,
    option.prediction_spread = 0;
  return situation;
}

FeatureTable features_of(const Situation& situation) {
  const Estimates estimates = estimates_of(situation);
  FeatureTable table;
  table.options = promising_options(situation, estimates);
  const SharedInputs shared = shared_inputs_of(situation, estimates);
  table.situation = shared_row(shared);
  for (const std::size_t i : table.options) {
    table.rows.push_back(row_of(shared, i));
    table.estimates.push_back(std::exp(estimates.corrected[i]));
  }
  return table;
}

}  // namespace optimus
