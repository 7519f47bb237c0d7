// AdaptationContext: the properties of a run that its adaptation controller needs. They do not change during
// the run. Callbacks marked "any thread" are also called from other threads during training. Objects that
// they refer to must outlive the controller. Plain data.
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
  // Returns the input for a planner search on this cluster, with the batch size and sequence length of
  // `current_plan`. Any thread.
  std::function<Demand(const Cluster&, const Plan& current_plan)> demand;
  // Whether the engine can run the plan and the settings of the run allow it. Any thread.
  std::function<bool(const Plan&)> can_run;
  std::function<double()> clock;  // seconds; any thread
  ResponseLimits limits{};
  // Only for the oracle policy: conditions that replace the detector's findings.
  std::optional<ScriptedConditions> scripted{};
  // If true, plans are also compared once when nothing is slow, after enough step times have been measured.
  bool seeks_better_plan = false;
  std::int64_t last_step = 0;  // of the run; 0 if unknown
  // True if ranks communicate only through host memory. Probes then use the same network as training, so they
  // measure its speed.
  bool has_host_links = true;
  // Owns policy.network. Null if the policy uses the built-in network.
  std::shared_ptr<const LearnedPolicy> learned_policy{};
  // Losses and arrivals of ranks so far, with times from `clock`. It is passed on because each membership
  // change creates a new controller.
  MembershipHistory membership{};
  ExpectedLifetime expected_lifetime{};
  // The expected number of completed steps that a worker failure undoes under a plan with this step time. If
  // null, the policy must not change the redundancy of the state. Any thread.
  std::function<double(const Plan&, double step_seconds)> undone_steps{};

  bool decides() const { return policy.kind != PolicyKind::never; }
};

}  // namespace optimus
