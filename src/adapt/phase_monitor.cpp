// Implements phase_monitor.h.
#include "adapt/phase_monitor.h"

#include <fmt/format.h>

namespace optimus {

std::optional<StayDecision> PhaseMonitor::take_plateau_report() {
  if (is_plateau_reported_ || !plateau_.has_stopped()) return std::nullopt;
  is_plateau_reported_ = true;
  return StayDecision{"the loss falls by less than 2 % in 200 steps",
                      "a larger batch may help (--batch-ramp)", ""};
}

std::optional<StayDecision> PhaseMonitor::observe_lengths(const LengthSum& lengths) {
  constexpr double kNoticeableChange = 1.3;
  lengths_.observe(lengths);
  const double change = lengths_.change();
  if (change < kNoticeableChange && change > 1 / kNoticeableChange) return std::nullopt;
  reset_lengths();
  return StayDecision{
      fmt::format("document lengths have changed; attention now costs {:.2f}x as much", change),
      "looking for a better plan", ""};
}

}  // namespace optimus
