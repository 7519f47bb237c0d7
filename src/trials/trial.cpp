// See trial.h.
#include "trials/trial.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "base/random.h"
#include "policy/membership_history.h"

namespace optimus {
namespace {

constexpr int kNoMode = -1;

// The pause of a switch to `mode` from a mode with `devices_before` devices.
double pause_between(int devices_before, const TrialMode& mode) {
  return devices_before > mode.devices ? mode.shrink_seconds.value_or(mode.pause_seconds)
                                       : mode.pause_seconds;
}

// Statistics of the predictions of one mode under one set of conditions.
struct PredictionStats {
  int count = 0;
  double sum = 0, squares = 0;  // of the logarithms of the predictions
  bool is_measured = false;
};

class TrialRun {
 public:
  TrialRun(const Decider& decider, const TrialCase& trial_case)
      : decider_(decider),
        trial_case_(trial_case),
        key_(RandomKey(trial_case.seed)),
        mode_(trial_case.first_mode) {}

  TrialOutcome run() {
    for (segment_index_ = 0; segment_index_ < trial_case_.segments.size(); ++segment_index_)
      run_segment(trial_case_.segments[segment_index_]);
    return outcome_;
  }

 private:
  double seconds_in(const TrialSegment& segment, int mode) const {
    return mode == kNoMode ? 0 : segment.step_seconds[static_cast<std::size_t>(mode)];
  }
  static bool can_run_any(const TrialSegment& segment) {
    return std::any_of(segment.step_seconds.begin(), segment.step_seconds.end(),
                       [](double s) { return s > 0; });
  }

  int devices_now() const {
    return mode_ == kNoMode ? 0 : trial_case_.modes[static_cast<std::size_t>(mode_)].devices;
  }

  void run_segment(const TrialSegment& segment) {
    now_ = segment.begin;
    predicted_gain_ = 0;  // earlier predictions were made under other conditions
    begin_segment(segment);
    if (is_loss_to(segment, mode_)) {
      ++outcome_.steps_lost;
      // half of the step in flight, on average
      outcome_.useful_steps -= std::min(0.5, outcome_.useful_steps);
      undo(trial_case_.modes[static_cast<std::size_t>(mode_)].undone_steps);
      stay_idle(segment, trial_case_.costs.detection_seconds);
    }
    const bool is_broken = seconds_in(segment, mode_) <= 0;
    if (is_loss_to(segment, mode_) && !is_broken)
      stay_idle(segment, trial_case_.costs.recovery_seconds);  // training continues with spare nodes
    if (is_broken) decide(segment);
    // A slowdown is detected after some steps. The policy then decides again at growing intervals until the
    // segment ends.
    double wait =
        is_broken ? trial_case_.decision_interval : trial_case_.detection_steps * seconds_in(segment, mode_);
    for (int i = 0; i < 8 && now_ < segment.end && seconds_in(segment, mode_) > 0; ++i) {
      advance_to(segment, now_ + wait);
      if (now_ < segment.end) decide(segment);
      wait = std::max(2 * wait, trial_case_.decision_interval);
    }
    advance_to(segment, segment.end);
  }

  // Undoes at most the steps since the last rollback, because the checkpoint that was restored then still
  // exists.
  void undo(double steps) {
    if (steps <= 0) return;
    outcome_.useful_steps -= std::clamp(steps, 0.0, std::max(0.0, outcome_.useful_steps - restored_steps_));
    restored_steps_ = outcome_.useful_steps;
  }

  // Updates the numbers of nodes, losses and arrivals, which all policies can observe.
  void begin_segment(const TrialSegment& segment) {
    predictions_.assign(trial_case_.modes.size(), 0);
    const int present_before = num_present_devices_;
    num_present_devices_ = 0;
    for (std::size_t m = 0; m < trial_case_.modes.size(); ++m)
      if (segment.step_seconds[m] > 0)
        num_present_devices_ = std::max(num_present_devices_, trial_case_.modes[m].devices);
    if (num_present_devices_ > present_before && segment_index_ > 0) membership_.arrivals.add(now_);
    if (segment.is_loss) membership_.losses.add(now_);
  }

  void stay_idle(const TrialSegment& segment, double seconds) {
    const double until = std::min(segment.end, now_ + seconds);
    if (can_run_any(segment)) outcome_.seconds_lost += until - now_;
    now_ = until;
  }

  void advance_to(const TrialSegment& segment, double end_time) {
    end_time = std::min(end_time, segment.end);
    if (end_time <= now_) return;
    const double seconds = seconds_in(segment, mode_);
    if (seconds > 0)
      outcome_.useful_steps += (end_time - now_) / seconds, record_measurement(seconds);
    else if (can_run_any(segment))
      outcome_.seconds_lost += end_time - now_;
    now_ = end_time;
  }

  // Records the measured step time of the running mode and the error of its prediction.
  void record_measurement(double seconds) {
    history_[{mode_, seconds}].is_measured = true;
    if (predicted_seconds_ <= 0) return;
    const double error = std::log(seconds / predicted_seconds_);
    ++prediction_errors_.count, prediction_errors_.sum += error, prediction_errors_.squares += error * error;
    predicted_seconds_ = 0;
  }

  double normal(const RandomKey& key) const {
    const double radius = std::sqrt(-2 * std::log(1 - random_uniform(key, 0)));
    return radius * std::cos(2 * std::numbers::pi * random_uniform(key, 1));
  }

  double permanent_error(int mode) const {
    return std::hypot(trial_case_.permanent_error,
                      trial_case_.modes[static_cast<std::size_t>(mode)].uncertainty);
  }

  // The predicted step time of a mode that has not run under these conditions, with random errors.
  double predicted_seconds(const TrialSegment& segment, int mode, PredictionStats& history) {
    double& prediction = predictions_[static_cast<std::size_t>(mode)];
    if (prediction > 0) return prediction;
    const RandomKey key = key_.derive(segment_index_).derive(static_cast<std::uint64_t>(mode));
    double error = trial_case_.prediction_error * normal(key);
    if (const double permanent = permanent_error(mode); permanent > 0)
      error += permanent * normal(key_.derive("for good").derive(static_cast<std::uint64_t>(mode)));
    prediction = seconds_in(segment, mode) * std::exp(error) * trial_case_.prediction_bias;
    const double logarithm = std::log(prediction);
    ++history.count, history.sum += logarithm, history.squares += logarithm * logarithm;
    return prediction;
  }

  PlanOption option_of(const TrialSegment& segment, int mode) {
    const TrialMode& trial_mode = trial_case_.modes[static_cast<std::size_t>(mode)];
    const double true_seconds = seconds_in(segment, mode);
    PlanOption option{Response::stay, true_seconds, trial_mode.usual_seconds, 0.01, 0, trial_mode.devices};
    option.is_measured = mode == mode_, option.undone_steps = trial_mode.undone_steps;
    if (mode == mode_) return option;
    option.response = mode == previous_mode_ ? Response::resume : trial_mode.response;
    option.pause_seconds = pause_between(devices_now(), trial_mode) * trial_case_.pause_prediction_bias;
    PredictionStats& history = history_[{mode, true_seconds}];
    option.is_measured = history.is_measured;
    if (history.is_measured) return option;
    option.uncertainty = std::hypot(trial_case_.prediction_error, permanent_error(mode));
    option.step_seconds = predicted_seconds(segment, mode, history);
    option.usual_seconds *= option.step_seconds / true_seconds;  // the same cost model predicts both
    const double mean = history.sum / history.count;
    option.mean_predicted_seconds = std::exp(mean), option.num_predictions = history.count;
    option.prediction_spread = std::sqrt(std::max(0.0, history.squares / history.count - mean * mean));
    return option;
  }

  Situation situation_in(const TrialSegment& segment, std::vector<int>& modes) {
    Situation situation;
    describe_membership(membership_, now_, devices_now(), {}, situation);
    if (mode_ != kNoMode)
      situation.options.push_back(option_of(segment, mode_));
    else
      situation.options.push_back({.response = Response::stay, .step_seconds = 0});
    modes.push_back(mode_);
    for (int mode = 0; mode < std::ssize(trial_case_.modes); ++mode)
      if (mode != mode_ && seconds_in(segment, mode) > 0)
        situation.options.push_back(option_of(segment, mode)), modes.push_back(mode);
    situation.conditions = segment.conditions;
    for (OngoingCondition& condition : situation.conditions) condition.age += now_ - segment.begin;
    situation.since_switch = now_ - last_switch_;
    if (predicted_gain_ > 0 && now_ - last_switch_ > 10 * seconds_in(segment, mode_) &&
        seconds_in(segment, mode_) > 0) {
      situation.predicted_gain = predicted_gain_;
      situation.measured_gain = 1 - seconds_in(segment, mode_) / seconds_before_;
      if (!is_gain_recorded_) record_gain(*situation.predicted_gain, *situation.measured_gain);
    }
    situation.recovery_seconds = trial_case_.costs.detection_seconds + trial_case_.costs.recovery_seconds;
    situation.exploration_left = std::max(0.0, 0.01 * now_ - exploration_seconds_);
    add_history(situation);
    return situation;
  }

  void record_gain(double predicted_gain, double measured_gain) {
    is_gain_recorded_ = true;
    ++num_recorded_gains_, predicted_gain_sum_ += predicted_gain, measured_gain_sum_ += measured_gain;
  }

  void add_history(Situation& situation) {
    situation.switches = outcome_.switches, situation.devices_present = num_present_devices_;
    situation.num_prediction_errors = prediction_errors_.count;
    if (prediction_errors_.count > 0) {
      situation.mean_prediction_error = prediction_errors_.sum / prediction_errors_.count;
      situation.prediction_error_spread =
          std::sqrt(std::max(0.0, prediction_errors_.squares / prediction_errors_.count -
                                      situation.mean_prediction_error * situation.mean_prediction_error));
    }
    situation.num_judged_switches = num_recorded_gains_, situation.predicted_gain_sum = predicted_gain_sum_,
    situation.measured_gain_sum = measured_gain_sum_;
  }

  void decide(const TrialSegment& segment) {
    std::vector<int> modes;
    const Situation situation = situation_in(segment, modes);
    ++outcome_.decisions;
    const Choice choice = decider_(situation, {segment_index_, now_, outcome_.useful_steps, modes});
    const bool is_broken = situation.options.front().step_seconds <= 0;
    if (choice.option == 0) return;
    const int next_mode = modes[choice.option];
    const PlanOption& option = situation.options[choice.option];
    const bool is_first = mode_ == kNoMode;
    predicted_gain_ = is_broken ? 0 : 1 - option.step_seconds / situation.options.front().step_seconds;
    seconds_before_ = situation.options.front().step_seconds;
    const double switch_pause =
        pause_between(devices_now(), trial_case_.modes[static_cast<std::size_t>(next_mode)]);
    const double pause = is_first    ? trial_case_.costs.start_seconds
                         : is_broken ? trial_case_.costs.recovery_seconds + switch_pause
                                     : switch_pause;
    if (!is_broken) exploration_seconds_ += switch_pause;
    membership_.add_time(now_, devices_now());
    previous_mode_ = mode_, mode_ = next_mode, last_switch_ = now_, is_gain_recorded_ = false;
    predicted_seconds_ = option.is_measured ? 0 : option.step_seconds;
    if (!is_first) ++outcome_.switches;
    stay_idle(segment, pause);
  }

  const Decider& decider_;
  const TrialCase& trial_case_;
  const RandomKey key_;
  int mode_, previous_mode_ = kNoMode, num_present_devices_ = 0;
  std::size_t segment_index_ = 0;
  double now_ = 0, last_switch_ = -1e9, predicted_gain_ = 0, seconds_before_ = 1, exploration_seconds_ = 0;
  double restored_steps_ = 0;     // useful steps at the last rollback; they are not undone again
  double predicted_seconds_ = 0;  // predicted step time of the new mode, until it is measured
  PredictionStats prediction_errors_;
  bool is_gain_recorded_ = true;
  int num_recorded_gains_ = 0;
  double predicted_gain_sum_ = 0, measured_gain_sum_ = 0;
  MembershipHistory membership_{.begin_time = 0};
  // Keyed by (mode, true seconds). Equal keys mean equal conditions.
  std::map<std::pair<int, double>, PredictionStats> history_;
  std::vector<double> predictions_;  // [mode]: prediction in this segment; 0: none yet
  TrialOutcome outcome_;
};

}  // namespace

TrialOutcome run_trial(const Decider& decider, const TrialCase& trial_case) {
  return TrialRun(decider, trial_case).run();
}

TrialOutcome run_trial(const Policy& policy, const TrialCase& trial_case) {
  if (policy.kind == PolicyKind::oracle) return hindsight(trial_case);
  const Decider decider = [&](const Situation& situation, const TrialPoint& point) {
    // The policy `never` does not switch plans, but it needs a first plan.
    const bool is_first = policy.kind == PolicyKind::never && point.modes.front() < 0;
    return choose(is_first ? Policy{.kind = PolicyKind::always_best} : policy, situation);
  };
  return run_trial(decider, trial_case);
}

}  // namespace optimus
