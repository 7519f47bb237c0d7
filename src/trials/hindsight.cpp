// Implements hindsight() of trial.h: finds the best sequence of modes.
#include <algorithm>
#include <numeric>

#include "trials/trial.h"

namespace optimus {
namespace {

struct BestRun {
  double steps = -1;                 // -1: the mode cannot be reached
  double steps_in_last_segment = 0;  // the number of `steps` in the last segment
  int switches = 0;
};

BestRun better_run(const BestRun& a, const BestRun& b) { return b.steps > a.steps ? b : a; }

// For each mode, the best result among all modes with more devices, and among all modes with the same number
// or fewer. `order` lists the modes sorted by number of devices.
struct Arrivals {
  std::vector<BestRun> from_larger, from_others;
};
Arrivals arrivals_of(const std::vector<BestRun>& best, const std::vector<TrialMode>& modes,
                     const std::vector<std::size_t>& order) {
  Arrivals result{std::vector<BestRun>(modes.size()), std::vector<BestRun>(modes.size(), best.back())};
  const auto devices = [&](std::size_t place) { return modes[order[place]].devices; };
  BestRun best_so_far = best.back();
  for (std::size_t i = 0, j = 0; i < order.size(); ++i) {
    for (; j < order.size() && devices(j) <= devices(i); ++j)
      best_so_far = better_run(best_so_far, best[order[j]]);
    result.from_others[order[i]] = best_so_far;
  }
  best_so_far = {};
  for (std::size_t i = order.size(), j = order.size(); i-- > 0;) {
    for (; j > 0 && devices(j - 1) > devices(i); --j)
      best_so_far = better_run(best_so_far, best[order[j - 1]]);
    result.from_larger[order[i]] = best_so_far;
  }
  return result;
}

// Applies a loss to each mode. It undoes at most the steps of the previous segment. With full knowledge, the
// run may have switched to a mode that loses fewer steps just before the loss, without a pause. `order` lists
// the modes in descending order of undone steps.
void apply_loss(std::vector<BestRun>& best, const std::vector<TrialMode>& modes,
                const std::vector<std::size_t>& order, const TrialSegment& before) {
  BestRun best_of_costlier;  // the best of the modes that lose more steps
  for (std::size_t i = 0, j = 0; i < order.size(); ++i) {
    const double undone = modes[order[i]].undone_steps;
    for (; modes[order[j]].undone_steps > undone; ++j)
      if (before.step_seconds[order[j]] > 0) best_of_costlier = better_run(best_of_costlier, best[order[j]]);
    if (before.step_seconds[order[i]] > 0) best[order[i]] = better_run(best[order[i]], best_of_costlier);
  }
  for (std::size_t m = 0; m < modes.size(); ++m)
    best[m].steps -= std::min(modes[m].undone_steps, best[m].steps_in_last_segment);
}

}  // namespace

// Uses dynamic programming over segments. For each mode, it computes the largest number of steps of a run
// that is in this mode at the end of the segment. The run either stayed in the mode or switched to it from
// the best other mode, with a pause at the start of the segment. A loss undoes the mode's undone_steps, plus
// half a step if the run stays in the mode. The additional last mode means not training.
TrialOutcome hindsight(const TrialCase& trial_case) {
  const std::size_t num_modes = trial_case.modes.size();
  std::vector<std::size_t> order(num_modes);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return trial_case.modes[a].devices < trial_case.modes[b].devices;
  });
  std::vector<std::size_t> by_undone = order;
  std::stable_sort(by_undone.begin(), by_undone.end(), [&](std::size_t a, std::size_t b) {
    return trial_case.modes[a].undone_steps > trial_case.modes[b].undone_steps;
  });
  std::vector<BestRun> best_values(num_modes + 1);
  best_values[trial_case.first_mode < 0 ? num_modes : static_cast<std::size_t>(trial_case.first_mode)].steps =
      0;
  bool has_started = trial_case.first_mode >= 0;
  const TrialSegment* previous_segment = nullptr;
  for (const TrialSegment& segment : trial_case.segments) {
    const double length = segment.end - segment.begin;
    if (segment.is_loss && previous_segment != nullptr)
      apply_loss(best_values, trial_case.modes, by_undone, *previous_segment);
    previous_segment = &segment;
    const Arrivals arrivals = arrivals_of(best_values, trial_case.modes, order);
    std::vector<BestRun> next_values(num_modes + 1);
    next_values[num_modes] = best_values[num_modes];
    for (std::size_t m = 0; m < num_modes; ++m) {
      next_values[m] = best_values[m],
      next_values[m].steps_in_last_segment = 0;  // no training in this segment
      const double seconds = segment.step_seconds[m];
      if (seconds <= 0) continue;
      const TrialMode& mode = trial_case.modes[m];
      const auto arrive = [&](const BestRun& origin, double pause) {
        if (origin.steps < 0) return;
        const double new_steps = std::max(0.0, length - pause) / seconds;
        next_values[m] =
            better_run(next_values[m], {origin.steps + new_steps, new_steps, origin.switches + 1});
      };
      arrive(arrivals.from_others[m], has_started ? mode.pause_seconds : trial_case.costs.start_seconds);
      arrive(arrivals.from_larger[m], mode.shrink_seconds.value_or(mode.pause_seconds));
      const double loss =
          is_loss_to(segment, static_cast<int>(m)) ? std::min(0.5, std::max(0.0, best_values[m].steps)) : 0;
      if (best_values[m].steps >= 0)
        next_values[m] = better_run(next_values[m], {best_values[m].steps + length / seconds - loss,
                                                     length / seconds, best_values[m].switches});
    }
    best_values = std::move(next_values);
    has_started = has_started || std::any_of(best_values.begin(), best_values.end() - 1,
                                             [](const BestRun& b) { return b.steps >= 0; });
  }
  BestRun best_run;
  for (const BestRun& b : best_values) best_run = better_run(best_run, b);
  TrialOutcome outcome;
  outcome.useful_steps = best_run.steps,
  outcome.switches = std::max(0, best_run.switches - (trial_case.first_mode < 0 ? 1 : 0));
  return outcome;
}

}  // namespace optimus
