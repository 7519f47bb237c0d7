// See trial.h.
#include "adapt/trial.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <set>

#include "base/error.h"
#include "base/random.h"

namespace optimus {
namespace {

constexpr int kNone = -1;

// To come to `mode` from one of so many devices.
double pause_between(int devices_before, const TrialMode& mode) {
  return devices_before > mode.devices ? mode.shrink_seconds.value_or(mode.pause_seconds)
                                       : mode.pause_seconds;
}

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

  int devices_now() const { return mode_ == kNone ? 0 : one_.modes[static_cast<std::size_t>(mode_)].devices; }

  void live_through(const TrialSegment& segment) {
    now_ = segment.begin;
    predicted_ = 0;  // what was promised was promised for other conditions
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
      outcome_.useful_steps += (until - now_) / seconds, measured_.insert({mode_, seconds});
    else if (has_any(segment))
      outcome_.seconds_lost += until - now_;
    now_ = until;
  }

  // What a policy is told of a mode: as it was measured, where it ran under these conditions before; else wrong by some factor.
  double told(const TrialSegment& segment, int mode) const {
    if (measured_.contains({mode, seconds_in(segment, mode)})) return seconds_in(segment, mode);
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
                                 response == Response::stay ? 0 : pause_between(devices_now(), known),
                                 known.devices});
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
  std::set<std::pair<int, double>> measured_;
  TrialOutcome outcome_;
};

}  // namespace

TrialOutcome run_trial(const Policy& policy, const TrialCase& one) {
  if (policy.kind == PolicyKind::oracle) return hindsight(one);
  return TrialRun(policy, one).run();
}

namespace {

struct Best {
  double steps = -1;  // -1: not reached
  int switches = 0;
};

Best better(const Best& a, const Best& b) { return b.steps > a.steps ? b : a; }

// The best of all modes with more devices than each, and of all with as many or fewer: [mode]. `order`: by devices.
struct Arrivals {
  std::vector<Best> from_larger, from_others;
};
Arrivals arrivals_of(const std::vector<Best>& best, const std::vector<TrialMode>& modes,
                     const std::vector<std::size_t>& order) {
  Arrivals result{std::vector<Best>(modes.size()), std::vector<Best>(modes.size(), best.back())};
  const auto devices = [&](std::size_t place) { return modes[order[place]].devices; };
  Best so_far = best.back();
  for (std::size_t i = 0, j = 0; i < order.size(); ++i) {
    for (; j < order.size() && devices(j) <= devices(i); ++j) so_far = better(so_far, best[order[j]]);
    result.from_others[order[i]] = so_far;
  }
  so_far = {};
  for (std::size_t i = order.size(), j = order.size(); i-- > 0;) {
    for (; j > 0 && devices(j - 1) > devices(i); --j) so_far = better(so_far, best[order[j - 1]]);
    result.from_larger[order[i]] = so_far;
  }
  return result;
}

}  // namespace

// Best steps so far when in a mode at a segment's end: it stayed, or came from the best of the others and paid the pause at the segment's
// begin. Losses cost half a step, as they do everybody; standing still is a mode too, the last.
TrialOutcome hindsight(const TrialCase& one) {
  const std::size_t num = one.modes.size();
  std::vector<std::size_t> order(num);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return one.modes[a].devices < one.modes[b].devices; });
  std::vector<Best> best(num + 1);
  best[one.first_mode < 0 ? num : static_cast<std::size_t>(one.first_mode)].steps = 0;
  bool has_started = one.first_mode >= 0;
  for (const TrialSegment& segment : one.segments) {
    const double length = segment.end - segment.begin;
    const Arrivals from = arrivals_of(best, one.modes, order);
    std::vector<Best> next(num + 1);
    next[num] = best[num];
    for (std::size_t m = 0; m < num; ++m) {
      next[m] = best[m];  // it waits
      const double seconds = segment.step_seconds[m];
      if (seconds <= 0) continue;
      const TrialMode& mode = one.modes[m];
      const auto come = [&](const Best& before, double pause) {
        if (before.steps < 0) return;
        next[m] =
            better(next[m], {before.steps + std::max(0.0, length - pause) / seconds, before.switches + 1});
      };
      come(from.from_others[m], has_started ? mode.pause_seconds : one.costs.start_seconds);
      come(from.from_larger[m], mode.shrink_seconds.value_or(mode.pause_seconds));
      const double loss = segment.is_loss ? std::min(0.5, std::max(0.0, best[m].steps)) : 0;
      if (best[m].steps >= 0)
        next[m] = better(next[m], {best[m].steps + length / seconds - loss, best[m].switches});
    }
    best = std::move(next);
    has_started =
        has_started || std::any_of(best.begin(), best.end() - 1, [](const Best& b) { return b.steps >= 0; });
  }
  Best most;
  for (const Best& b : best) most = better(most, b);
  TrialOutcome outcome;
  outcome.useful_steps = most.steps,
  outcome.switches = std::max(0, most.switches - (one.first_mode < 0 ? 1 : 0));
  return outcome;
}

}  // namespace optimus
