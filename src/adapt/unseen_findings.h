// UnseenFindings: conditions that do not currently affect step times, because the plan does not use the slow
// device or node, or assigns it so little work that its slowness is masked.
//
// Such a condition is assumed to last as long as usual for its cause. After that, the device is used again. A
// probe may show earlier that the device has recovered. Pure; one thread at a time. The cluster must outlive
// this object.
#pragma once

#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "adapt/detect.h"
#include "adapt/probe_result.h"

namespace optimus {

class UnseenFindings {
 public:
  // `horizon` is the upper limit for the expected duration of a condition, in seconds.
  UnseenFindings(const Cluster& cluster, double horizon) : cluster_(cluster), horizon_(horizon) {}

  // Each time a device was used again and was still slow, the waiting time before the next attempt doubles.
  void add(Finding finding, double now);
  // Replaces the entries with `findings`. Findings that were already known keep their times.
  void reset(std::vector<Finding> findings, double now);
  // Removes entries whose expected duration has passed, and entries that the detector has found again
  // (`detected`).
  void expire(double now, const std::vector<Finding>& detected);

  bool is_empty() const { return entries_.empty(); }
  std::vector<Finding> findings() const;

  // Whether a probe can show that one of the devices or nodes has recovered.
  bool can_be_probed(bool sees_networks) const;
  // Whether a second probe should confirm that a device has recovered, because it seemed so in the last
  // probe.
  bool needs_confirmation() const;
  // The interval between probes, in seconds, that minimizes the time lost by the run.
  double probe_interval(double now, int num_used_devices) const;
  // Removes and returns findings whose devices or nodes had normal speed in two consecutive probes. The other
  // findings that the probe measured are kept at least until `keep_until`.
  std::vector<Finding> apply_probe(const ProbeResult& probe, bool sees_networks, double keep_until);

 private:
  struct Entry {
    Finding finding;
    // When the finding was last seen, and when the condition is expected to end. Both are times of the
    // controller's clock.
    double begin_time = 0, end_time = 0;
    bool seemed_recovered = false;  // at the last probe
  };

  const Cluster& cluster_;
  const double horizon_;
  std::vector<Entry> entries_;
  std::map<std::pair<Cause, int>, double> num_tries_;
};

}  // namespace optimus
