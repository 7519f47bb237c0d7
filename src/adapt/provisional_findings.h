// ProvisionalFindings: what a few slow steps suggest before the detector is sure.
//
// The answer to a provisional finding is computed and prepared while the detector decides, so that the switch
// can begin as soon as the finding is confirmed. Only devices and hosts count: a slow network is probed
// first. Pure; one thread at a time.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "adapt/detect.h"

namespace optimus {

class ProvisionalFindings {
 public:
  // Starts again with a new detector. usual: as for Detector.
  void watch(Topology topology, const std::map<std::pair<int, Measure>, double>& usual);
  void observe(const Observation& seen);
  const std::vector<Finding>& findings() const { return findings_; }

  // Whether the findings may be answered now. They are not while an answer to the last ones, or a rejected
  // one, is recent.
  bool may_be_weighed(double now) const { return !findings_.empty() && now >= next_at_; }
  void weighed(double now);
  // A proposal was prepared in vain: each time the next one waits longer.
  void rejected(double now);

 private:
  std::unique_ptr<Detector> detector_;
  std::vector<Finding> findings_;
  double next_at_ = 0, wait_ = 0;  // time of the controller's clock; seconds
};

}  // namespace optimus
