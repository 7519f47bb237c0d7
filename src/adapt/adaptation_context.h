// AdaptationContext: the properties of a run that its adaptation controller needs, set once. Callbacks marked
// "any thread" are called while the run trains. Objects that they refer to must outlive the controller. Plain
// data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "adapt/respond.h"
#include "adapt/scripted_conditions.h"
#include "policy/membership_history.h"
#include "policy/policy.h"

namespace optimus {

struct AdaptationContext {
  const ModelSpec& model;
  Policy policy;
  HardwareProfile machines;  // the cluster as described to the cost model, without current slowdowns
  RecoveryCosts costs{};
  // The input of a planner search on this cluster, with the batch and sequence length of `present_plan`;
  // any thread.
  std::function<Demand(const Cluster&, const Plan& present_plan)> demand;
  // Whether the engine can run the plan and the run allows it; any thread.
  std::function<bool(const Plan&)> can_run;
  std::function<double()> clock;  // seconds; any thread
  ResponseLimits limits{};
  // Only for the oracle policy: conditions that replace the detector's findings.
  std::optional<ScriptedConditions> scripted{};
  // If true, plans are also compared once when nothing is slow, as soon as step times have been measured.
  bool seeks_better_plan = false;
  std::int64_t last_step = 0;  // of the run; 0 if unknown
  // True if ranks communicate through host memory only. Probe messages then use the same network as
  // training, so they show its speed.
  bool has_host_links = true;
  // Owns policy.network; null if the policy uses the shipped network.
  std::shared_ptr<const LearnedPolicy> learned_policy{};
  // The history of the membership so far, in times of `clock`. A membership change creates a new controller.
  MembershipHistory membership{};
  ExpectedLifetime expected_lifetime{};
  // Expected number of completed steps that the failure of a worker undoes on a plan with this step time. If
  // null, the policy must not change the redundancy of the state. Any thread.
  std::function<double(const Plan&, double step_seconds)> undone_steps{};

  bool decides() const { return policy.kind != PolicyKind::never; }
};

}  // namespace optimus
