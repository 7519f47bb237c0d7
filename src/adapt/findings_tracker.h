// FindingsTracker: all findings that are known to slow the run down at present.
//
// A finding is in one of these states:
//
//   detected     the detector sees it on the present plan
//   held         found on the previous plan; this plan's detector has not seen enough steps to confirm it
//   unseen       the present plan cannot show it, because it does not use the device or masks its slowness
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
  // `horizon`: upper limit of the expected duration of a condition, in seconds.
  FindingsTracker(const ModelSpec& model, const Cluster& cluster, const PlanHistory& history,
                  Calibration& calibration, double horizon);

  // At a plan change, call leave_plan(), let the history adopt the new plan, then call begin_plan(). With
  // `carries_findings`, findings of the old plan become held or unseen; otherwise they are dropped.
  void leave_plan();
  void begin_plan(bool carries_findings, double now);

  // For each observation, the following functions are called in this order.
  void detect(const Observation& observation);
  void replace_detected(std::vector<Finding> findings);  // only with scripted conditions
  void add_held();
  // Narrows a link finding that may be on one of several nodes to the nodes that a probe has found to be
  // slow. `slowdown_of_node` is the probe's result; empty if there is none. Returns whether a finding was
  // ambiguous before.
  bool narrow_links(const std::vector<double>& slowdown_of_node);
  // Learns from undisturbed steps, updates unseen findings and adds them.
  void settle(const Observation& observation, double now);

  // Removes unseen findings whose devices or nodes the probe has shown to have recovered.
  void apply_probe(const ProbeResult& probe, bool sees_networks, double now);

  // The findings in force.
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

  // Conditions that affect the present plan and have begun after its first steps, without
  // `known_conditions` and without heavy stages, which are caused by the plan itself.
  std::vector<Condition> conditions_since_switch(const std::vector<Condition>& known_conditions) const;
  // True if something that would slow down any plan has begun after the plan's first steps.
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
  std::vector<StageWork> stage_work_;  // of the present plan
  std::unique_ptr<Detector> detector_;
  ProvisionalFindings provisional_;
  UnseenFindings unseen_;
  std::vector<Finding> findings_, held_findings_;
  // Devices that were not slow on the previous plan. Empty once the baselines of stages are learned from
  // their own first steps.
  std::set<int> healthy_before_;
  int num_observations_ = 0;  // by the present detector
  bool was_slow_ = false;
};

}  // namespace optimus
