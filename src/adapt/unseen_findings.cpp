// Implements unseen_findings.h.
#include "adapt/unseen_findings.h"

#include <algorithm>
#include <cmath>

#include "adapt/plan_conditions.h"
#include "policy/lifetime.h"

namespace optimus {
namespace {

bool is_same(const Finding& a, const Finding& b) { return a.cause == b.cause && a.locations == b.locations; }

// The slowdown of each device, relative to the speeds that the cluster specifies.
std::vector<double> device_slowdowns(const ProbeResult& probe, const Cluster& cluster) {
  std::vector<double> seconds = probe.devices;
  for (std::size_t i = 0; i < seconds.size(); ++i)
    seconds[i] *= cluster.speed_of(Device{static_cast<int>(i)});
  return slowdowns(seconds);
}

}  // namespace

void UnseenFindings::add(Finding finding, double now) {
  double& num_tries = num_tries_[{finding.cause, finding.locations.front()}];
  const double remainder = expected_remaining_seconds(usual_lifetime(finding.cause), 0, horizon_);
  entries_.push_back({std::move(finding), now, now + remainder * std::exp2(num_tries++)});
}

void UnseenFindings::reset(std::vector<Finding> findings, double now) {
  const std::vector<Entry> previous_entries = std::exchange(entries_, {});
  for (Finding& finding : findings) {
    const auto it = std::find_if(previous_entries.begin(), previous_entries.end(),
                                 [&](const Entry& entry) { return is_same(entry.finding, finding); });
    if (it != previous_entries.end())
      entries_.push_back(*it);
    else
      add(std::move(finding), now);
  }
}

void UnseenFindings::expire(double now, const std::vector<Finding>& detected) {
  std::erase_if(entries_, [&](const Entry& entry) {
    return entry.end_time <= now || is_covered_by(entry.finding, detected, cluster_);
  });
}

std::vector<Finding> UnseenFindings::findings() const {
  std::vector<Finding> result;
  for (const Entry& entry : entries_) result.push_back(entry.finding);
  return result;
}

bool UnseenFindings::can_be_probed(bool sees_networks) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& entry) {
    if (entry.finding.cause == Cause::link) return sees_networks && cluster_.num_nodes() >= 3;
    return cluster_.num_devices() >= 3;
  });
}

bool UnseenFindings::needs_confirmation() const {
  return std::any_of(entries_.begin(), entries_.end(),
                     [](const Entry& entry) { return entry.seemed_recovered; });
}

// Frequent probes pause training, but rare probes let recovered devices stay unused: a recovery is noticed
// half an interval later on average. Let a probe take c seconds, let the condition end with probability h per
// second, and let g be the fraction of devices that are unused (or one masked device). Probing every t
// seconds costs c / t + g h t / 2 per second. The minimum is at t = sqrt(2 c / (g h)).
double UnseenFindings::probe_interval(double now, int num_used_devices) const {
  constexpr double kProbeSeconds = 0.2, kMinInterval = 10,
                   kMaxInterval = 600;  // seconds; measured probes take 0.1 to 0.3
  double loss_rate = 0;
  for (const Entry& entry : entries_)
    loss_rate += chance_to_end(usual_lifetime(entry.finding.cause), now - entry.begin_time);
  const auto num_devices = static_cast<double>(cluster_.num_devices());
  loss_rate *= std::max(1 - num_used_devices / num_devices, 1 / num_devices);
  return std::clamp(std::sqrt(2 * kProbeSeconds / std::max(loss_rate, 1e-9)), kMinInterval, kMaxInterval);
}

// A device is considered recovered when its slowdown is below max(1.15, sqrt(factor)), which is about halfway
// back to normal. If it is still slow, the detector will find it again.
std::vector<Finding> UnseenFindings::apply_probe(const ProbeResult& probe, bool sees_networks,
                                                 double keep_until) {
  constexpr double kRecoveredSlowdown = 1.15;
  const std::vector<double> devices = device_slowdowns(probe, cluster_),
                            networks = sees_networks ? slowdowns(probe.network) : std::vector<double>();
  // The slowdown of the slowest device or node in the finding, or 0 if none of them was measured.
  const auto slowdown_of = [&](const Finding& finding) {
    double maximum = 0;
    const std::vector<double>& slowdowns_by_index = finding.cause == Cause::link ? networks : devices;
    for (int i = 0; i < std::ssize(slowdowns_by_index); ++i) {
      const int place = finding.cause == Cause::host ? cluster_.node_of(Device{i}) : i;
      if (place == finding.locations.front())
        maximum = std::max(maximum, slowdowns_by_index[static_cast<std::size_t>(i)]);
    }
    return maximum;
  };
  std::vector<Finding> recovered;
  for (Entry& entry : std::exchange(entries_, {})) {
    const double slowdown = slowdown_of(entry.finding);
    const bool is_recovered =
        slowdown > 0 && slowdown < std::max(kRecoveredSlowdown, std::sqrt(entry.finding.factor));
    if (is_recovered && entry.seemed_recovered) {
      recovered.push_back(std::move(entry.finding));
      continue;
    }
    entry.seemed_recovered = is_recovered;
    // The device is probed again before the run uses it.
    if (slowdown > 0) entry.end_time = std::max(entry.end_time, keep_until);
    entries_.push_back(std::move(entry));
  }
  return recovered;
}

}  // namespace optimus
