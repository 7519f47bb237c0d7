// Implements provisional_findings.h.
#include "adapt/provisional_findings.h"

#include <algorithm>

namespace optimus {

void ProvisionalFindings::watch(Topology topology, const std::map<std::pair<int, Measure>, double>& usual) {
  detector_ = std::make_unique<Detector>(std::move(topology), early_options(), usual);
  findings_.clear();
}

void ProvisionalFindings::observe(const Observation& seen) {
  findings_ = detector_->observe(seen);
  std::erase_if(findings_, [](const Finding& finding) {
    return (finding.cause != Cause::device && finding.cause != Cause::host) ||
           finding.factor < early_options().strong_factor;
  });
}

void ProvisionalFindings::weighed(double now) {
  constexpr double kWait = 30;  // seconds; by then a finding without a proposal has passed or was confirmed
  next_at_ = now + kWait;
}

void ProvisionalFindings::rejected(double now) {
  constexpr double kFirst = 30, kLongest = 600;  // seconds
  wait_ = std::clamp(2 * wait_, kFirst, kLongest);
  next_at_ = now + wait_;
}

}  // namespace optimus
