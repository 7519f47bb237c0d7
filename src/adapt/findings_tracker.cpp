// Implements findings_tracker.h.
#include "adapt/findings_tracker.h"

#include <algorithm>
#include <cmath>

namespace optimus {
namespace {

// Keeps only the nodes that are about as slow as the slowest one, because the others were disturbed only
// briefly.
void narrow_link(Finding& finding, const std::vector<double>& slowdown_of_node) {
  constexpr double kSlowNetwork = 1.3;  // relative to the median node
  const auto slowdown_of = [&](int node) {
    return node < std::ssize(slowdown_of_node) ? slowdown_of_node[static_cast<std::size_t>(node)] : 0;
  };
  double worst = 1;
  for (const int node : finding.locations) worst = std::max(worst, slowdown_of(node));
  const double min_slowdown = std::max(kSlowNetwork, std::sqrt(worst));
  std::vector<int> slow_nodes;
  for (const int node : finding.locations)
    if (slowdown_of(node) >= min_slowdown) slow_nodes.push_back(node);
  if (slow_nodes.empty()) return;
  finding.locations = std::move(slow_nodes), finding.factor = std::max(finding.factor, worst);
}

}  // namespace

FindingsTracker::FindingsTracker(const ModelSpec& model, const Cluster& cluster, const PlanHistory& history,
                                 Calibration& calibration, double horizon)
    : model_(model),
      cluster_(cluster),
      history_(history),
      calibration_(calibration),
      unseen_(cluster, horizon) {
  begin_plan(false, 0);
}

// Baselines come from the calibration where it has measurements. All others, and those for the stages of the
// ranks in `learn_from_first_steps`, are learned from the first steps of the plan.
void FindingsTracker::restart_detectors(const std::set<int>& learn_from_first_steps) {
  Topology topology(history_.plan(), cluster_, DeviceMap::identity(cluster_.num_devices()));
  auto baseline_seconds = calibration_.baselines(stage_work_, topology);
  std::erase_if(baseline_seconds, [&](const auto& baseline) {
    const std::vector<int>& ranks = topology.ranks_of_group(baseline.first.first);
    return std::any_of(ranks.begin(), ranks.end(),
                       [&](int rank) { return learn_from_first_steps.contains(rank); });
  });
  provisional_.restart_detector(topology, baseline_seconds);
  detector_ = std::make_unique<Detector>(std::move(topology), DetectorOptions{}, baseline_seconds);
  num_observations_ = 0;
}

void FindingsTracker::leave_plan() {
  healthy_before_ = healthy_devices(history_.plan(), conditions(), cluster_);
}

// Step times contain no information about devices that the plan does not use, so findings about them become
// unseen. A heavy stage is a property of the old plan and is dropped.
void FindingsTracker::begin_plan(bool carries_findings, double now) {
  std::vector<Finding> unused;
  held_findings_.clear();
  for (const Finding& finding : carries_findings ? findings_ : std::vector<Finding>()) {
    if (!is_mitigable_by_plan(finding.cause) || finding.cause == Cause::heavy_stage) continue;
    const Condition first_condition{finding.cause, finding.locations.front(), finding.factor};
    const bool is_used = !conditions_of_plan({first_condition}, history_.plan(), cluster_).empty();
    (is_used ? held_findings_ : unused).push_back(finding);
  }
  unseen_.reset(std::move(unused), now);
  stage_work_ = stage_work(history_.plan(), model_, cluster_);
  restart_detectors();
}

void FindingsTracker::detect(const Observation& observation) {
  ++num_observations_;
  findings_ = detector_->observe(observation);
  if (is_baseline_wrong()) restart_detectors(std::exchange(healthy_before_, {})), findings_.clear();
}

void FindingsTracker::replace_detected(std::vector<Finding> findings) { findings_ = std::move(findings); }

void FindingsTracker::add_held() {
  if (num_observations_ > kObservationsToDetect) return;
  for (const Finding& finding : held_findings_)
    if (!is_covered_by(finding, findings_, cluster_)) findings_.push_back(finding);
}

bool FindingsTracker::narrow_links(const std::vector<double>& slowdown_of_node) {
  bool is_ambiguous = false;
  for (Finding& finding : findings_) {
    // With only two nodes, a probe cannot show which of them is slow.
    if (finding.cause != Cause::link || finding.locations.size() < 2 || topology().num_nodes() < 3) continue;
    is_ambiguous = true;
    if (!slowdown_of_node.empty()) narrow_link(finding, slowdown_of_node);
  }
  return is_ambiguous;
}

void FindingsTracker::settle(const Observation& observation, double now) {
  if (is_quiet())
    calibration_.learn(observation, stage_work_, topology());
  else
    was_slow_ = true;
  if (num_observations_ == kObservationsToDetect + 1) release_held(now);
  unseen_.expire(now, findings_);
  for (Finding& finding : unseen_.findings()) findings_.push_back(std::move(finding));
}

// If a condition is no longer visible right after the plan was changed because of it, it has probably not
// ended. With less work, the slowness of a device or network may be masked, so the finding becomes unseen.
void FindingsTracker::release_held(double now) {
  std::erase_if(held_findings_, [&](const Finding& finding) {
    if (is_covered_by(finding, findings_, cluster_)) return false;
    unseen_.add(finding, now);
    return true;
  });
}

void FindingsTracker::apply_probe(const ProbeResult& probe, bool sees_networks, double now) {
  if (unseen_.is_empty()) return;
  const double keep_until = now + 3 * probe_interval(now);
  for (const Finding& recovered : unseen_.apply_probe(probe, sees_networks, keep_until))
    std::erase_if(findings_, [&](const Finding& known) {
      return known.cause == recovered.cause && known.locations == recovered.locations;
    });
}

double FindingsTracker::probe_interval(double now) const {
  return unseen_.probe_interval(now, num_devices(history_.plan()));
}

bool FindingsTracker::is_quiet() const {
  return std::none_of(findings_.begin(), findings_.end(),
                      [](const Finding& finding) { return is_mitigable_by_plan(finding.cause); });
}

// Whether the finding's device can be compared with other devices of its stage.
bool FindingsTracker::has_stage_peers(const Finding& finding) const {
  if (finding.cause != Cause::device) return false;
  const int rank = finding.locations.front();
  return rank < topology().num_ranks() && topology().ranks_of_group(topology().group_of(rank)).size() > 1;
}

// The baseline of a stage is wrong if its only device was healthy before the plan change but appears slow
// from the first step of the new plan.
bool FindingsTracker::is_baseline_wrong() const {
  return std::any_of(findings_.begin(), findings_.end(), [&](const Finding& finding) {
    if (finding.cause != Cause::device || finding.begin_step > history_.first_step() + 1) return false;
    const int rank = finding.locations.front();
    return healthy_before_.contains(rank) && rank < topology().num_ranks() && !has_stage_peers(finding);
  });
}

// Leaves out slowdowns that have existed since the first steps of the plan, because the plan itself may cause
// them. They are included only if a comparison with other devices of the stage shows that one device is slow.
std::vector<Condition> FindingsTracker::conditions_since_switch(
    const std::vector<Condition>& known_conditions) const {
  std::vector<Condition> result;
  for (const Finding& finding : findings_) {
    if (!is_mitigable_by_plan(finding) || finding.cause == Cause::heavy_stage) continue;
    if (finding.begin_step < history_.first_step() + kSettlingObservations && !has_stage_peers(finding))
      continue;
    for (const int location : finding.locations) {
      const Condition condition{finding.cause, location, finding.factor};
      const bool is_known =
          std::any_of(known_conditions.begin(), known_conditions.end(),
                      [&](const Condition& before) { return is_part_of(condition, before, cluster_); });
      if (!is_known) result.push_back(condition);
    }
  }
  return conditions_of_plan(result, history_.plan(), cluster_);
}

bool FindingsTracker::is_any_plan_slowed() const {
  return std::any_of(findings_.begin(), findings_.end(), [&](const Finding& finding) {
    return (finding.cause == Cause::cluster || finding.cause == Cause::data_loading) &&
           finding.begin_step >= history_.first_step() + kSettlingObservations;
  });
}

}  // namespace optimus
