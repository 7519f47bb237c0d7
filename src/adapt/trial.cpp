// See trial.h.
#include "adapt/trial.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/random.h"

namespace optimus {
namespace {

constexpr int kNone = -1;

class TrialRun {
 public:
  TrialRun(const Policy& policy, const TrialCase& one)
      : policy_(policy), one_(one), key_(RandomKey(one.seed)), mode_(one.first_mode) {}

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

  void live_through(const TrialSegment& segment) {
    now_ = segment.begin;
    if (mode_ != kNone)
      devices_seconds_ += one_.modes[static_cast<std::size_t>(mode_)].devices * (segment.end - segment.begin);
    if (segment.is_loss && mode_ != kNone) {
      ++losses_, ++outcome_.steps_lost;
      outcome_.useful_steps -= std::min(0.5, outcome_.useful_steps);  // half of it, on average
      stand_still(segment, one_.costs.detection_seconds);
    }
    const bool is_broken = seconds_in(segment, mode_) <= 0;
    if (segment.is_loss && !is_broken) stand_still(segment, one_.costs.recovery_seconds);  // with spare nodes
    if (is_broken) {
      decide(segment);
    } else {
      // Found after some steps; asked again as the condition grows older.
      double wait = one_.detection_steps * seconds_in(segment, mode_);
      for (int asked = 0; asked < 8 && now_ < segment.end; ++asked, wait *= 2) {
        work(segment, now_ + wait);
        if (now_ < segment.end) decide(segment);
        if (seconds_in(segment, mode_) <= 0) break;
      }
    }
    work(segment, segment.end);
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
      outcome_.useful_steps += (until - now_) / seconds;
    else if (has_any(segment))
      outcome_.seconds_lost += until - now_;
    now_ = until;
  }

  // What a policy is told of a mode: wrong by the same factor for as long as the segment lasts.
  double told(const TrialSegment& segment, int mode) const {
    const RandomKey key = key_.with(at_).with(static_cast<std::uint64_t>(mode));
    const double radius = std::sqrt(-2 * std::log(1 - random_uniform(key, 0)));
    const double normal = radius * std::cos(2 * std::numbers::pi * random_uniform(key, 1));
    return seconds_in(segment, mode) * std::exp(one_.prediction_error * normal);
  }

  Situation situation_in(const TrialSegment& segment, std::vector<int>& modes) const {
    Situation told_of{.now = now_};
    const auto put = [&](int mode, Response response, double seconds) {
      const TrialMode& known = one_.modes[static_cast<std::size_t>(mode)];
      told_of.options.push_back({response, seconds, known.usual_seconds, one_.prediction_error,
                                 response == Response::stay ? 0 : known.pause_seconds, known.devices});
      modes.push_back(mode);
    };
    if (mode_ != kNone) {
      put(mode_, Response::stay, seconds_in(segment, mode_));
    } else {
      told_of.options.push_back({.response = Response::stay, .step_seconds = 0});
      modes.push_back(kNone);
    }
    for (int mode = 0; mode < std::ssize(one_.modes); ++mode)
      if (mode != mode_ && seconds_in(segment, mode) > 0)
        put(mode, mode == before_ ? Response::resume : one_.modes[static_cast<std::size_t>(mode)].response,
            told(segment, mode));
    told_of.conditions = segment.conditions;
    for (OngoingCondition& one : told_of.conditions) one.age += now_ - segment.begin;
    told_of.since_switch = now_ - switched_;
    if (predicted_ > 0 && now_ - switched_ > 10 * seconds_in(segment, mode_) &&
        seconds_in(segment, mode_) > 0) {
      told_of.predicted_gain = predicted_;
      told_of.realised_gain = 1 - seconds_in(segment, mode_) / step_before_;
    }
    told_of.losses_per_device_second = losses_ / std::max(1.0, devices_seconds_);
    told_of.recovery_seconds = one_.costs.detection_seconds + one_.costs.recovery_seconds;
    told_of.exploration_left = std::max(0.0, 0.01 * now_ - explored_);
    if (policy_.kind == PolicyKind::oracle) told_of.true_rest = segment.end - now_;
    return told_of;
  }

  void decide(const TrialSegment& segment) {
    std::vector<int> modes;
    const Situation situation = situation_in(segment, modes);
    ++outcome_.decisions;
    Choice choice = choose(policy_, situation);
    const bool is_broken = situation.options.front().step_seconds <= 0;
    // Never waits for its own plan; but some plan must be the first.
    if (policy_.kind == PolicyKind::never && mode_ == kNone)
      choice = choose({.kind = PolicyKind::always_best}, situation);
    if (choice.option == 0) return;
    const int next = modes[choice.option];
    const PlanOption& option = situation.options[choice.option];
    const bool is_first = mode_ == kNone;
    predicted_ = is_broken ? 0 : 1 - option.step_seconds / situation.options.front().step_seconds;
    step_before_ = situation.options.front().step_seconds;
    const double pause = is_first    ? one_.costs.start_seconds
                         : is_broken ? one_.costs.recovery_seconds + option.pause_seconds
                                     : option.pause_seconds;
    if (!is_broken) explored_ += option.pause_seconds;
    before_ = mode_, mode_ = next, switched_ = now_;
    if (!is_first) ++outcome_.switches;
    stand_still(segment, pause);
  }

  const Policy& policy_;
  const TrialCase& one_;
  const RandomKey key_;
  int mode_, before_ = kNone;
  std::size_t at_ = 0;
  double now_ = 0, switched_ = -1e9, predicted_ = 0, step_before_ = 1, explored_ = 0;
  double losses_ = 0, devices_seconds_ = 0;
  TrialOutcome outcome_;
};

}  // namespace

TrialOutcome run_trial(const Policy& policy, const TrialCase& one) {
  if (policy.kind == PolicyKind::oracle) return hindsight(one);
  return TrialRun(policy, one).run();
}

// Best steps so far when in a mode at a segment's end. Coming to a mode costs its pause at the segment's begin, from wherever; so the best
// of all others is enough to know. Losses cost half a step and the recovery, as they do everybody; standing still is a mode too.
TrialOutcome hindsight(const TrialCase& one) {
  struct Best {
    double steps = -1;  // -1: not reached
    int switches = 0;
  };
  const std::size_t num = one.modes.size();
  std::vector<Best> best(num + 1);  // the last: none
  best[one.first_mode < 0 ? num : static_cast<std::size_t>(one.first_mode)].steps = 0;
  bool has_started = one.first_mode >= 0;
  for (const TrialSegment& segment : one.segments) {
    const double length = segment.end - segment.begin;
    Best from;
    for (const Best& b : best)
      if (b.steps > from.steps) from = b;
    std::vector<Best> next(num + 1);
    next[num] = from;
    for (std::size_t m = 0; m < num; ++m) {
      const double seconds = segment.step_seconds[m];
      if (seconds <= 0) {
        next[m] = best[m];  // it waits
        continue;
      }
      const double pause = has_started ? one.modes[m].pause_seconds : one.costs.start_seconds;
      const double steps_coming = std::max(0.0, length - pause) / seconds;
      next[m] = {from.steps + steps_coming, from.switches + 1};
      const double loss = segment.is_loss ? std::min(0.5, std::max(0.0, best[m].steps)) : 0;
      if (best[m].steps >= 0 && best[m].steps + length / seconds - loss > next[m].steps)
        next[m] = {best[m].steps + length / seconds - loss, best[m].switches};
    }
    best = std::move(next);
    has_started =
        has_started || std::any_of(best.begin(), best.end() - 1, [](const Best& b) { return b.steps >= 0; });
  }
  Best most;
  for (const Best& b : best)
    if (b.steps > most.steps) most = b;
  TrialOutcome outcome;
  outcome.useful_steps = most.steps,
  outcome.switches = std::max(0, most.switches - (one.first_mode < 0 ? 1 : 0));
  return outcome;
}

}  // namespace optimus
