// See trial.h.
#include "trials/trial.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>

#include "adapt/membership_history.h"
#include "base/random.h"

namespace optimus {
namespace {

constexpr int kNone = -1;

// The pause of a switch to `mode` from a mode with this number of devices.
double pause_between(int devices_before, const TrialMode& mode) {
  return devices_before > mode.devices ? mode.shrink_seconds.value_or(mode.pause_seconds)
                                       : mode.pause_seconds;
}

// Statistics of the predictions for one mode under one set of conditions.
struct Told {
  int times = 0;
  double sum = 0, squares = 0;  // of logarithms
  bool is_measured = false;
};

class TrialRun {
 public:
  TrialRun(const Decider& decider, const TrialCase& one)
      : decider_(decider), one_(one), key_(RandomKey(one.seed)), mode_(one.first_mode) {}

  TrialOutcome run() {
    for (at_ = 0; at_ < one_.segments.size(); ++at_) live_through(one_.segments[at_]);
    return outcome_;
  }

 private:
  double seconds_in(const TrialSegment& segment, int mode) const {
    return mode == kNone ? 0 : segment.step_seconds[static_cast<std::size_t>(mode)];
  }
  static bool has_any(const TrialSegment& segment) {
    return std::any_of(segment.step_seconds.begin(), segment.step_seconds.end(),
                       [](double s) { return s > 0; });
  }

  int devices_now() const { return mode_ == kNone ? 0 : one_.modes[static_cast<std::size_t>(mode_)].devices; }

  void live_through(const TrialSegment& segment) {
    now_ = segment.begin;
    predicted_ = 0;  // earlier predictions were made for other conditions
    begin_segment(segment);
    if (is_loss_to(segment, mode_)) {
      ++outcome_.steps_lost;
      // half of the step in flight, on average
      outcome_.useful_steps -= std::min(0.5, outcome_.useful_steps);
      undo(one_.modes[static_cast<std::size_t>(mode_)].undone_steps);
      stand_still(segment, one_.costs.detection_seconds);
    }
    const bool is_broken = seconds_in(segment, mode_) <= 0;
    if (is_loss_to(segment, mode_) && !is_broken)
      stand_still(segment, one_.costs.recovery_seconds);  // continues with spare nodes
    if (is_broken) decide(segment);
    // A slowdown is detected after some steps. The policy is then asked again at growing intervals while the
    // condition lasts.
    double wait = is_broken ? one_.ask_seconds : one_.detection_steps * seconds_in(segment, mode_);
    for (int asked = 0; asked < 8 && now_ < segment.end && seconds_in(segment, mode_) > 0; ++asked) {
      work(segment, now_ + wait);
      if (now_ < segment.end) decide(segment);
      wait = std::max(2 * wait, one_.ask_seconds);
    }
    work(segment, segment.end);
  }

  // At most the steps since the last rollback: a checkpoint that was restored then is not lost again.
  void undo(double steps) {
    if (steps <= 0) return;
    outcome_.useful_steps -= std::clamp(steps, 0.0, std::max(0.0, outcome_.useful_steps - read_));
    read_ = outcome_.useful_steps;
  }

  // Updates the state that every policy observes.
  void begin_segment(const TrialSegment& segment) {
    told_.assign(one_.modes.size(), 0);
    const int before = present_;
    present_ = 0;
    for (std::size_t m = 0; m < one_.modes.size(); ++m)
      if (segment.step_seconds[m] > 0) present_ = std::max(present_, one_.modes[m].devices);
    if (present_ > before && at_ > 0) membership_.arrivals.add(now_);
    if (segment.is_loss) membership_.losses.add(now_);
  }

  void stand_still(const TrialSegment& segment, double seconds) {
    const double until = std::min(segment.end, now_ + seconds);
    if (has_any(segment)) outcome_.seconds_lost += until - now_;
    now_ = until;
  }

  void work(const TrialSegment& segment, double until) {
    until = std::min(until, segment.end);
    if (until <= now_) return;
    const double seconds = seconds_in(segment, mode_);
    if (seconds > 0)
      outcome_.useful_steps += (until - now_) / seconds, see_running(seconds);
    else if (has_any(segment))
      outcome_.seconds_lost += until - now_;
    now_ = until;
  }

  // A running mode is measured; the error of its prediction is recorded.
  void see_running(double seconds) {
    history_[{mode_, seconds}].is_measured = true;
    if (expected_ <= 0) return;
    const double miss = std::log(seconds / expected_);
    ++misses_.times, misses_.sum += miss, misses_.squares += miss * miss;
    expected_ = 0;
  }

  double normal(const RandomKey& key) const {
    const double radius = std::sqrt(-2 * std::log(1 - random_uniform(key, 0)));
    return radius * std::cos(2 * std::numbers::pi * random_uniform(key, 1));
  }

  double lasting_error(int mode) const {
    return std::hypot(one_.lasting_error, one_.modes[static_cast<std::size_t>(mode)].doubt);
  }

  // The predicted step time of a mode that has not run under these conditions, with a random error.
  double told(const TrialSegment& segment, int mode, Told& history) {
    double& known = told_[static_cast<std::size_t>(mode)];
    if (known > 0) return known;
    const RandomKey key = key_.with(at_).with(static_cast<std::uint64_t>(mode));
    double error = one_.prediction_error * normal(key);
    if (const double lasting = lasting_error(mode); lasting > 0)
      error += lasting * normal(key_.with("for good").with(static_cast<std::uint64_t>(mode)));
    known = seconds_in(segment, mode) * std::exp(error) * one_.told_factor;
    const double logarithm = std::log(known);
    ++history.times, history.sum += logarithm, history.squares += logarithm * logarithm;
    return known;
  }

  PlanOption option_of(const TrialSegment& segment, int mode) {
    const TrialMode& known = one_.modes[static_cast<std::size_t>(mode)];
    const double truth = seconds_in(segment, mode);
    PlanOption option{Response::stay, truth, known.usual_seconds, 0.01, 0, known.devices};
    option.is_measured = mode == mode_, option.undone_steps = known.undone_steps;
    if (mode == mode_) return option;
    option.response = mode == before_ ? Response::resume : known.response;
    option.pause_seconds = pause_between(devices_now(), known) * one_.told_pause_factor;
    Told& history = history_[{mode, truth}];
    option.is_measured = history.is_measured;
    if (history.is_measured) return option;
    option.doubt = std::hypot(one_.prediction_error, lasting_error(mode));
    option.step_seconds = told(segment, mode, history);
    option.usual_seconds *= option.step_seconds / truth;  // the same cost model predicts both
    const double mean = history.sum / history.times;
    option.mean_predicted_seconds = std::exp(mean), option.num_predictions = history.times;
    option.prediction_spread = std::sqrt(std::max(0.0, history.squares / history.times - mean * mean));
    return option;
  }

  Situation situation_in(const TrialSegment& segment, std::vector<int>& modes) {
    Situation told_of;
    describe_membership(membership_, now_, devices_now(), {}, told_of);
    if (mode_ != kNone)
      told_of.options.push_back(option_of(segment, mode_));
    else
      told_of.options.push_back({.response = Response::stay, .step_seconds = 0});
    modes.push_back(mode_);
    for (int mode = 0; mode < std::ssize(one_.modes); ++mode)
      if (mode != mode_ && seconds_in(segment, mode) > 0)
        told_of.options.push_back(option_of(segment, mode)), modes.push_back(mode);
    told_of.conditions = segment.conditions;
    for (OngoingCondition& one : told_of.conditions) one.age += now_ - segment.begin;
    told_of.since_switch = now_ - switched_;
    if (predicted_ > 0 && now_ - switched_ > 10 * seconds_in(segment, mode_) &&
        seconds_in(segment, mode_) > 0) {
      told_of.predicted_gain = predicted_;
      told_of.measured_gain = 1 - seconds_in(segment, mode_) / step_before_;
      if (!is_judged_) judge(*told_of.predicted_gain, *told_of.measured_gain);
    }
    told_of.recovery_seconds = one_.costs.detection_seconds + one_.costs.recovery_seconds;
    told_of.exploration_left = std::max(0.0, 0.01 * now_ - explored_);
    add_history(told_of);
    return told_of;
  }

  void judge(double promised, double kept) {
    is_judged_ = true;
    ++num_judged_, promised_ += promised, kept_ += kept;
  }

  void add_history(Situation& told_of) {
    told_of.switches = outcome_.switches, told_of.devices_present = present_;
    told_of.num_missed = misses_.times;
    if (misses_.times > 0) {
      told_of.mean_miss = misses_.sum / misses_.times;
      told_of.miss_spread =
          std::sqrt(std::max(0.0, misses_.squares / misses_.times - told_of.mean_miss * told_of.mean_miss));
    }
    told_of.num_judged = num_judged_, told_of.gain_promised = promised_, told_of.gain_measured = kept_;
  }

  void decide(const TrialSegment& segment) {
    std::vector<int> modes;
    const Situation situation = situation_in(segment, modes);
    ++outcome_.decisions;
    const Choice choice = decider_(situation, {at_, now_, outcome_.useful_steps, modes});
    const bool is_broken = situation.options.front().step_seconds <= 0;
    if (choice.option == 0) return;
    const int next = modes[choice.option];
    const PlanOption& option = situation.options[choice.option];
    const bool is_first = mode_ == kNone;
    predicted_ = is_broken ? 0 : 1 - option.step_seconds / situation.options.front().step_seconds;
    step_before_ = situation.options.front().step_seconds;
    const double change = pause_between(devices_now(), one_.modes[static_cast<std::size_t>(next)]);
    const double pause = is_first    ? one_.costs.start_seconds
                         : is_broken ? one_.costs.recovery_seconds + change
                                     : change;
    if (!is_broken) explored_ += change;
    membership_.add_time(now_, devices_now());
    before_ = mode_, mode_ = next, switched_ = now_, is_judged_ = false;
    expected_ = option.is_measured ? 0 : option.step_seconds;
    if (!is_first) ++outcome_.switches;
    stand_still(segment, pause);
  }

  const Decider& decider_;
  const TrialCase& one_;
  const RandomKey key_;
  int mode_, before_ = kNone, present_ = 0;
  std::size_t at_ = 0;
  double now_ = 0, switched_ = -1e9, predicted_ = 0, step_before_ = 1, explored_ = 0;
  double read_ = 0;      // useful steps contained in the most recently restored checkpoint
  double expected_ = 0;  // predicted step time of the new mode, until it is measured
  Told misses_;
  bool is_judged_ = true;
  int num_judged_ = 0;
  double promised_ = 0, kept_ = 0;
  MembershipHistory membership_{.began = 0};
  std::map<std::pair<int, double>, Told> history_;  // [mode, true seconds]: identifies equal conditions
  std::vector<double> told_;                        // [mode], in this segment; 0: not predicted yet
  TrialOutcome outcome_;
};

}  // namespace

TrialOutcome run_trial(const Decider& decider, const TrialCase& one) { return TrialRun(decider, one).run(); }

TrialOutcome run_trial(const Policy& policy, const TrialCase& one) {
  if (policy.kind == PolicyKind::oracle) return hindsight(one);
  const Decider decider = [&](const Situation& situation, const TrialPoint& point) {
    // `never` does not switch away from its plan, but it needs a first plan.
    const bool is_first = policy.kind == PolicyKind::never && point.modes.front() < 0;
    return choose(is_first ? Policy{.kind = PolicyKind::always_best} : policy, situation);
  };
  return run_trial(decider, one);
}

}  // namespace optimus
