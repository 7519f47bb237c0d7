// See trial_values.h.
#include "trials/trial_values.h"

#include <algorithm>

namespace optimus {

TrialValues::TrialValues(const TrialCase& trial_case) : trial_case_(trial_case) {
  const std::size_t num_modes = trial_case.modes.size();
  values_.assign(trial_case.segments.size() + 1, std::vector<double>(num_modes + 1, 0));
  for (std::size_t s = trial_case.segments.size(); s-- > 0;) {
    values_[s][num_modes] = best_from(s, -1);
    for (std::size_t m = 0; m < num_modes; ++m) values_[s][m] = best_from(s, static_cast<int>(m));
  }
}

double TrialValues::at(std::size_t segment, int mode) const {
  return values_[segment][mode < 0 ? trial_case_.modes.size() : static_cast<std::size_t>(mode)];
}

double TrialValues::pause(int from, int to) const {
  const TrialMode& mode = trial_case_.modes[static_cast<std::size_t>(to)];
  const int devices = from < 0 ? 0 : trial_case_.modes[static_cast<std::size_t>(from)].devices;
  return devices > mode.devices ? mode.shrink_seconds.value_or(mode.pause_seconds) : mode.pause_seconds;
}

// The result is at most the number of steps in the previous segment. Steps that were already undone there are
// not considered.
double TrialValues::num_undone_steps(std::size_t segment, int mode) const {
  const auto m = static_cast<std::size_t>(mode);
  if (segment == 0 || trial_case_.segments[segment - 1].step_seconds[m] <= 0) return 0;
  const TrialSegment& previous_segment = trial_case_.segments[segment - 1];
  return std::min(trial_case_.modes[m].undone_steps,
                  (previous_segment.end - previous_segment.begin) / previous_segment.step_seconds[m]);
}

// Returns the larger of two values: staying in the mode, or switching to the best other mode as soon as the
// change is detected.
double TrialValues::best_from(std::size_t segment, int mode) const {
  const TrialSegment& trial_segment = trial_case_.segments[segment];
  const double length = trial_segment.end - trial_segment.begin;
  const double mode_seconds = mode < 0 ? 0 : trial_segment.step_seconds[static_cast<std::size_t>(mode)];
  const bool has_lost = is_loss_to(trial_segment, mode);
  double halt = has_lost ? trial_case_.costs.detection_seconds : 0;
  double useful_steps = has_lost ? -0.5 - num_undone_steps(segment, mode) : 0;
  if (has_lost && mode_seconds > 0) halt += trial_case_.costs.recovery_seconds;
  double best_value = at(segment + 1, mode) + useful_steps +
                      (mode_seconds > 0 ? std::max(0.0, length - halt) / mode_seconds : 0);
  if (mode_seconds > 0) {  // continues until the detection, if that is before the end of the segment
    const double wait = trial_case_.detection_steps * mode_seconds;
    if (halt + wait >= length) return best_value;
    halt += wait, useful_steps += wait / mode_seconds;
  } else {
    halt += mode < 0 ? trial_case_.costs.start_seconds : trial_case_.costs.recovery_seconds;
  }
  for (int to = 0; to < std::ssize(trial_case_.modes); ++to) {
    const double seconds = trial_segment.step_seconds[static_cast<std::size_t>(to)];
    if (to == mode || seconds <= 0) continue;
    const double change = mode < 0 ? 0 : pause(mode, to);
    best_value = std::max(
        best_value, useful_steps + std::max(0.0, length - halt - change) / seconds + at(segment + 1, to));
  }
  return best_value;
}

std::vector<double> TrialValues::values_of_options(const TrialPoint& point) const {
  const TrialSegment& trial_segment = trial_case_.segments[point.segment];
  const double remaining_seconds = trial_segment.end - point.elapsed_seconds;
  const int mode = point.modes.front();
  const double mode_seconds = mode < 0 ? 0 : trial_segment.step_seconds[static_cast<std::size_t>(mode)];
  std::vector<double> values = {at(point.segment + 1, mode) +
                                (mode_seconds > 0 ? remaining_seconds / mode_seconds : 0)};
  for (std::size_t i = 1; i < point.modes.size(); ++i) {
    const int to = point.modes[i];
    const double halt = mode < 0            ? trial_case_.costs.start_seconds
                        : mode_seconds <= 0 ? trial_case_.costs.recovery_seconds + pause(mode, to)
                                            : pause(mode, to);
    values.push_back(at(point.segment + 1, to) +
                     std::max(0.0, remaining_seconds - halt) /
                         trial_segment.step_seconds[static_cast<std::size_t>(to)]);
  }
  return values;
}

}  // namespace optimus
