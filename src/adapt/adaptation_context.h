// AdaptationContext: what the adaptation controller knows about its run, set once. Callbacks marked "any
// thread" are called while the run trains. What they refer to must outlive the controller. Plain data.
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
  HardwareProfile machines;  // as the cost model knows them
  RecoveryCosts costs{};
  // The planner's demand on this cluster, with the batch and sequence length of the present plan; any thread.
  std::function<Demand(const Cluster&, const Plan& present_plan)> demand;
  std::function<bool(const Plan&)>
      can_run;                    // whether the engine can run the plan and the run allows it; any thread
  std::function<double()> clock;  // seconds; any thread
  ResponseLimits limits{};
  // For the oracle policy: used in place of what the detector finds.
  std::optional<ScriptedConditions> scripted{};
  // Also compare plans once when nothing is slow, after step times have been measured.
  bool seeks_better_plan = false;
  std::int64_t last_step = 0;  // of the run; 0: not known
  // Ranks communicate through host memory only. Then probe messages show the speed of training's own network.
  bool has_host_links = true;
  std::shared_ptr<const LearnedPolicy> learned_policy{};  // owns policy.network; null for the shipped one
  MembershipHistory membership{};  // until now, by the clock; a membership change creates a new controller
  ExpectedLifetime expected_lifetime{};
  // Steps that a loss undoes on a plan with this step time. Null: the policy must not change the redundancy
  // of the state. Any thread.
  std::function<double(const Plan&, double step_seconds)> undone_steps{};

  bool decides() const { return policy.kind != PolicyKind::never; }
};

}  // namespace optimus
