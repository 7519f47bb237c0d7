// Implements unseen_findings.h.
#include "adapt/unseen_findings.h"

#include <algorithm>
#include <cmath>

#include "adapt/plan_conditions.h"
#include "policy/lifetime.h"

namespace optimus {
namespace {

bool is_same(const Finding& a, const Finding& b) { return a.cause == b.cause && a.locations == b.locations; }

// Slowdowns by device, relative to the speeds that the cluster specifies.
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
    const auto known = std::find_if(previous_entries.begin(), previous_entries.end(),
                                    [&](const Entry& entry) { return is_same(entry.finding, finding); });
    if (known != previous_entries.end())
      entries_.push_back(*known);
    else
      add(std::move(finding), now);
  }
}

void UnseenFindings::expire(double now, const std::vector<Finding>& found) {
  std::erase_if(entries_, [&](const Entry& one) {
    return one.end_time <= now || is_covered_by(one.finding, found, cluster_);
  });
}

std::vector<Finding> UnseenFindings::findings() const {
  std::vector<Finding> result;
  for (const Entry& entry : entries_) result.push_back(entry.finding);
  return result;
}

bool UnseenFindings::can_be_probed(bool sees_networks) const {
  return std::any_of(entries_.begin(), entries_.end(), [&](const Entry& one) {
    if (one.finding.cause == Cause::link) return sees_networks && cluster_.num_nodes() >= 3;
    return cluster_.num_devices() >= 3;
  });
}

bool UnseenFindings::needs_confirmation() const {
  return std::any_of(entries_.begin(), entries_.end(), [](const Entry& one) { return one.seemed_well; });
}

// A probe pauses training, and until a recovery is noticed, half of the interval later on average, the run
// uses fewer devices than it could. Let a probe take c seconds, let the condition end with probability h
// per second, and let g be the fraction of devices that are unused (or one masked device). Probing every t
// seconds costs c / t + g h t / 2 per second, which is least at t = sqrt(2 c / (g h)).
double UnseenFindings::probe_interval(double now, int num_used_devices) const {
  constexpr double kProbe = 0.2, kShortest = 10, kLongest = 600;  // seconds; measured probes take 0.1 to 0.3
  double worth = 0;
  for (const Entry& entry : entries_)
    worth += chance_to_end(usual_lifetime(entry.finding.cause), now - entry.begin_time);
  const auto num_devices = static_cast<double>(cluster_.num_devices());
  worth *= std::max(1 - num_used_devices / num_devices, 1 / num_devices);
  return std::clamp(std::sqrt(2 * kProbe / std::max(worth, 1e-9)), kShortest, kLongest);
}

// A device counts as recovered when its slowdown is below max(1.15, sqrt(factor)), that is, about halfway
// back to normal: the detector finds what is left of the condition.
std::vector<Finding> UnseenFindings::apply_probe(const ProbeResult& probe, bool sees_networks,
                                                 double keep_until) {
  constexpr double kWell = 1.15;
  const std::vector<double> devices = device_slowdowns(probe, cluster_),
                            networks = sees_networks ? slowdowns(probe.network) : std::vector<double>();
  // The slowdown of the slowest device or node of the finding; 0 if none was measured.
  const auto slowdown_of = [&](const Finding& finding) {
    double maximum = 0;
    const std::vector<double>& all = finding.cause == Cause::link ? networks : devices;
    for (int i = 0; i < std::ssize(all); ++i) {
      const int place = finding.cause == Cause::host ? cluster_.node_of(Device{i}) : i;
      if (place == finding.locations.front()) maximum = std::max(maximum, all[static_cast<std::size_t>(i)]);
    }
    return maximum;
  };
  std::vector<Finding> recovered;
  for (Entry& entry : std::exchange(entries_, {})) {
    const double now = slowdown_of(entry.finding);
    const bool is_well = now > 0 && now < std::max(kWell, std::sqrt(entry.finding.factor));
    if (is_well && entry.seemed_well) {
      recovered.push_back(std::move(entry.finding));
      continue;
    }
    entry.seemed_well = is_well;
    // The device is probed again before it is tried.
    if (now > 0) entry.end_time = std::max(entry.end_time, keep_until);
    entries_.push_back(std::move(entry));
  }
  return recovered;
}

}  // namespace optimus
