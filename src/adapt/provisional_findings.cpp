// Implements provisional_findings.h.
#include "adapt/provisional_findings.h"

#include <algorithm>

namespace optimus {

void ProvisionalFindings::restart_detector(
    Topology topology, const std::map<std::pair<int, Measure>, double>& baseline_seconds) {
  detector_ = std::make_unique<Detector>(std::move(topology), early_options(), baseline_seconds);
  findings_.clear();
}

void ProvisionalFindings::observe(const Observation& observation) {
  findings_ = detector_->observe(observation);
  std::erase_if(findings_, [](const Finding& finding) {
    return (finding.cause != Cause::device && finding.cause != Cause::host) ||
           finding.factor < early_options().strong_factor;
  });
}

void ProvisionalFindings::mark_weighed(double now) {
  constexpr double kWait = 30;  // seconds; by then a finding without a proposal has passed or was confirmed
  next_time_ = now + kWait;
}

void ProvisionalFindings::mark_rejected(double now) {
  constexpr double kMinWait = 30, kMaxWait = 600;  // seconds
  wait_ = std::clamp(2 * wait_, kMinWait, kMaxWait);
  next_time_ = now + wait_;
}

}  // namespace optimus
