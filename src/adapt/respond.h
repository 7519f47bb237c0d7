// Answers to conditions: plans that may be better on the machines as they are now, from inexpensive to
// expensive. A policy chooses among them (policy/decide.h). Pure.
#pragma once

#include <vector>

#include "policy/situation.h"
#include "recovery/recovery_costs.h"
#include "search/search.h"

namespace optimus {

struct PlannedOption {
  PlanOption option;
  Plan plan;
  // Devices that the plan does not use. Its device numbers then count the other devices in their order.
  std::vector<int> dropped{};
};

struct ResponseLimits {
  int max_simulations = 40;     // by the planner
  int alternatives = 3;         // further plans of the planner
  int searched_devices = 4096;  // with more devices the planner is not asked, because a search takes seconds
  std::vector<Plan> known_plans{};  // plans to consider in any case
  int refined_devices =
      128;  // with more devices the planner does not refine its plans, which would take seconds
};

// The planner's limits for a search on this number of devices.
SearchLimits search_limits(const ResponseLimits& limits, int num_devices, int alternatives);

// Seconds that a switch to this plan pauses training: the switch itself, and moving a device's part of the
// state if moves_state.
double pause_of(const RecoveryCosts& costs, const ModelSpec& model, const Plan& plan, bool moves_state);

// The present plan first, then other plans. The demand's cluster is the one without conditions; `conditions`
// are in force now. Every other plan is valid and fits in memory; equal plans are listed once. If no plan can
// answer the conditions, the present plan is the only option.
std::vector<PlannedOption> responses(const Demand& usual_demand, const Plan& plan,
                                     const std::vector<Condition>& conditions, const RecoveryCosts& costs,
                                     const ResponseLimits& limits = {});

// Replicas of different speed become pipelines of their own, with numbers of sequences in proportion to their
// speed. Empty if the plan is not a grid of equal stages, or if all replicas are equally fast. speeds:
// [device of the plan].
std::optional<Plan> shared_by_speed(const Plan& plan, const std::vector<double>& speeds);
// The plan without replicas that have a device slower than `least` times the fastest one. The other replicas
// share the batch.
std::optional<Plan> without_slow_replicas(const Plan& plan, const std::vector<double>& speeds, double least);
// Distributes layers over the stages by the speed of the stages' slowest devices, and by `loads`: measured
// load of stages relative to the mean. Empty if there is one stage, if stages differ in more than their
// layers, or if nothing changes. head: cost of the head relative to a layer; empty: estimated from its
// parameters.
std::optional<Plan> cut_by_speed(const Plan& plan, const ModelSpec& model, const std::vector<double>& speeds,
                                 const std::vector<double>& loads, std::optional<double> head = {});

// The plan with a redundant copy of each optimizer shard if it had none, and without copies otherwise. Copies
// are placed on other nodes if possible. Empty if the state is not sharded.
std::optional<Plan> with_other_redundancy(Plan plan, const std::vector<int>& node_of_device);

}  // namespace optimus
