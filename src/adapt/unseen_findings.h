// UnseenFindings: conditions that steps cannot show at present, because the plan does not use the device or
// node, or because it gives it so little work that its slowness is masked.
//
// Such a condition is believed to stay for as long as conditions of its kind usually do; then the device is
// tried again. A probe may show earlier that it has recovered. Pure; one thread at a time. The cluster must
// outlive it.
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
  // horizon: no condition is expected to last longer; seconds.
  UnseenFindings(const Cluster& cluster, double horizon) : cluster_(cluster), horizon_(horizon) {}

  // Each time that a condition was still present when the device was tried again, the next try comes after
  // twice the time.
  void add(Finding finding, double now);
  // Keeps of the earlier entries those among `findings`, and adds the others of them.
  void reset(std::vector<Finding> findings, double now);
  // Removes those whose expected time has passed and those that are found again.
  void expire(double now, const std::vector<Finding>& found);

  bool is_empty() const { return entries_.empty(); }
  std::vector<Finding> findings() const;

  // Whether a probe can show if one of them has recovered.
  bool can_be_probed(bool sees_networks) const;
  // Whether a device seemed well at the last probe, which a second probe should confirm.
  bool needs_confirmation() const;
  // Seconds between two probes that cost the run least.
  double probe_interval(double now, int num_used_devices) const;
  // Removes those that were well at two probes in a row, and returns them. Those that were measured stay at
  // least until `keep_until`.
  std::vector<Finding> apply_probe(const ProbeResult& probe, bool sees_networks, double keep_until);

 private:
  struct Entry {
    Finding finding;
    double begin_time = 0, end_time = 0;  // time of the controller's clock: last seen; expected to be over
    bool seemed_well = false;             // at the last probe
  };

  const Cluster& cluster_;
  const double horizon_;
  std::vector<Entry> entries_;
  std::map<std::pair<Cause, int>, double> num_tries_;
};

}  // namespace optimus
