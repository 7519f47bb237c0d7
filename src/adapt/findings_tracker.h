// FindingsTracker: all findings about conditions that currently slow the run down.
//
// A finding is in one of these states:
//
//   detected     the detector sees it on the current plan
//   held         found on the previous plan; this plan's detector has not seen enough steps to confirm it
//   unseen       the current plan cannot show it, because it does not use the device or masks its slowness
//                (adapt/unseen_findings.h)
//   provisional  only a few steps show it (adapt/provisional_findings.h); not part of findings()
//
// After kObservationsToDetect observations of a plan, its held findings become detected or unseen. Pure;
// one thread at a time. All references passed to the constructor must outlive the tracker.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "adapt/calibration.h"
#include "adapt/plan_history.h"
#include "adapt/provisional_findings.h"
#include "adapt/unseen_findings.h"

namespace optimus {

class FindingsTracker {
 public:
  // `horizon` is the upper limit for the expected duration of a condition, in seconds.
  FindingsTracker(const ModelSpec& model, const Cluster& cluster, const PlanHistory& history,
                  Calibration& calibration, double horizon);

  // At a plan change, call leave_plan(), then history.adopt() with the new plan, then begin_plan(). If
  // `carries_findings` is true, findings of the old plan become held or unseen. Otherwise they are dropped.
  void leave_plan();
  void begin_plan(bool carries_findings, double now);

  // The following functions must be called in this order for each observation.
  void detect(const Observation& observation);
  void replace_detected(std::vector<Finding> findings);  // only with scripted conditions
  void add_held();
  // Narrows each slow-network finding that may be on one of several nodes down to the nodes that a probe has
  // found to be slow. `slowdown_of_node` is the result of the probe, or empty if there is none. Returns
  // whether any finding was ambiguous before the call.
  bool narrow_links(const std::vector<double>& slowdown_of_node);
  // Updates the calibration if the step was undisturbed. Updates unseen findings and adds them to findings().
  void settle(const Observation& observation, double now);

  // Removes unseen findings if the probe shows that their devices or nodes have recovered.
  void apply_probe(const ProbeResult& probe, bool sees_networks, double now);

  // The active findings.
  const std::vector<Finding>& findings() const { return findings_; }
  std::vector<Condition> conditions() const { return answerable_conditions(findings_); }
  const UnseenFindings& unseen() const { return unseen_; }
  ProvisionalFindings& provisional() { return provisional_; }
  const ProvisionalFindings& provisional() const { return provisional_; }
  const Topology& topology() const { return detector_->topology(); }
  double probe_interval(double now) const;
  // True if there is no finding that another plan could answer.
  bool is_quiet() const;
  bool was_ever_slow() const { return was_slow_; }

  // Conditions that affect the current plan and began after its first steps. Excludes `known_conditions`, and
  // heavy stages, which are caused by the plan itself.
  std::vector<Condition> conditions_since_switch(const std::vector<Condition>& known_conditions) const;
  // True if a condition that would slow down any plan began after the first steps of this plan.
  bool is_any_plan_slowed() const;

 private:
  void restart_detectors(const std::set<int>& learn_from_first_steps = {});
  bool is_baseline_wrong() const;
  bool has_stage_peers(const Finding& finding) const;
  void release_held(double now);

  const ModelSpec& model_;
  const Cluster& cluster_;
  const PlanHistory& history_;
  Calibration& calibration_;
  std::vector<StageWork> stage_work_;  // of the current plan
  std::unique_ptr<Detector> detector_;
  ProvisionalFindings provisional_;
  UnseenFindings unseen_;
  std::vector<Finding> findings_, held_findings_;
  // Devices that were not slow on the previous plan. Cleared when stage baselines are learned from the first
  // steps of the new plan.
  std::set<int> healthy_before_;
  int num_observations_ = 0;  // by the present detector
  bool was_slow_ = false;
};

}  // namespace optimus
