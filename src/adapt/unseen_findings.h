// UnseenFindings: conditions that step times cannot show at present, because the plan does not use the slow
// device or node, or gives it so little work that its slowness is masked.
//
// Such a condition is assumed to last as long as conditions of its kind usually do; after that the device
// is tried again. A probe may show earlier that it has recovered. Pure; one thread at a time. The cluster
// must outlive this object.
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
  // `horizon`: upper limit of the expected duration of a condition, in seconds.
  UnseenFindings(const Cluster& cluster, double horizon) : cluster_(cluster), horizon_(horizon) {}

  // The wait before a device is tried again doubles each time that its condition was still present at the
  // last try.
  void add(Finding finding, double now);
  // Replaces the entries by `findings`; entries for findings that were known before keep their times.
  void reset(std::vector<Finding> findings, double now);
  // Removes entries whose expected duration has passed and those that the detector has found again
  // (`detected`).
  void expire(double now, const std::vector<Finding>& detected);

  bool is_empty() const { return entries_.empty(); }
  std::vector<Finding> findings() const;

  // Whether a probe can show that one of the devices or nodes has recovered.
  bool can_be_probed(bool sees_networks) const;
  // Whether a device seemed to have recovered at the last probe, which a second probe should confirm.
  bool needs_confirmation() const;
  // The interval between probes, in seconds, that costs the run the least time.
  double probe_interval(double now, int num_used_devices) const;
  // Removes and returns findings whose devices or nodes were at normal speed in two consecutive probes. The
  // other findings that the probe measured stay at least until `keep_until`.
  std::vector<Finding> apply_probe(const ProbeResult& probe, bool sees_networks, double keep_until);

 private:
  struct Entry {
    Finding finding;
    // Times of the controller's clock: when it was last seen, and when it is expected to have ended.
    double begin_time = 0, end_time = 0;
    bool seemed_recovered = false;  // at the last probe
  };

  const Cluster& cluster_;
  const double horizon_;
  std::vector<Entry> entries_;
  std::map<std::pair<Cause, int>, double> num_tries_;
};

}  // namespace optimus
