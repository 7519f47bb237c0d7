// ProvisionalFindings: findings that the early detector makes after a few slow steps, before the main
// detector confirms them.
//
// The response to a provisional finding is computed and prepared in advance, so that the switch can begin as
// soon as the finding is confirmed. Only slow devices and hosts become provisional findings, because a slow
// network is probed first. Pure; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "adapt/detect.h"

namespace optimus {

class ProvisionalFindings {
 public:
  // Restarts with a new early detector. `baseline_seconds` contains known baselines, as in the constructor of
  // Detector.
  void restart_detector(Topology topology, const std::map<std::pair<int, Measure>, double>& baseline_seconds);
  void observe(const Observation& observation);
  const std::vector<Finding>& findings() const { return findings_; }

  // Whether plans may be compared for these findings now. There is a waiting time after each comparison and
  // after each rejected proposal.
  bool may_be_weighed(double now) const { return !findings_.empty() && now >= next_time_; }
  void mark_weighed(double now);
  // Called when a prepared proposal was rejected. Doubles the waiting time before the next one.
  void mark_rejected(double now);

 private:
  std::unique_ptr<Detector> detector_;
  std::vector<Finding> findings_;
  double next_time_ = 0, wait_ = 0;  // by the controller's clock; seconds
};

}  // namespace optimus
