// Responses to conditions: plans that may be better on the machines in their current state, from the least to
// the most expensive change. A policy chooses among them (policy/decide.h). No side effects.
#pragma once

#include <vector>

#include "policy/situation.h"
#include "recovery/recovery_costs.h"
#include "search/search.h"

namespace optimus {

struct PlannedOption {
  PlanOption option;
  Plan plan;
  // Devices that the plan does not use. If there are any, the device indices of the plan number the remaining
  // devices in order.
  std::vector<int> dropped{};
};

struct ResponseLimits {
  int max_simulations = 40;  // simulations per search of the planner
  int alternatives = 3;      // plans of the planner in addition to its best one
  int max_searched_devices =
      4096;  // with more devices the planner is not run, because a search takes seconds
  std::vector<Plan> known_plans{};  // plans to consider in any case
  // With more devices, the planner does not refine its plans because that would take seconds.
  int max_refined_devices = 128;
};

// The planner's limits for a search on this number of devices.
SearchLimits search_limits(const ResponseLimits& limits, int num_devices, int alternatives);

// Seconds for which a switch to this plan pauses training. If `moves_state` is true, this includes the
// transfer of one device's share of the state.
double pause_of(const RecoveryCosts& costs, const ModelSpec& model, const Plan& plan, bool moves_state);

// Returns the current plan, followed by other plans. `usual_demand` describes the cluster without conditions;
// `conditions` are currently active. Each of the other plans is valid, fits in memory and is listed once. If
// no plan can mitigate the conditions, the current plan is the only option. Infeasible if no plan, including
// the current one, fits on the devices under these conditions.
Feasible<std::vector<PlannedOption>> responses(const Demand& usual_demand, const Plan& plan,
                                               const std::vector<Condition>& conditions,
                                               const RecoveryCosts& costs, const ResponseLimits& limits = {});

// Splits the replicas into separate pipelines by speed, each with a number of sequences proportional to its
// speed. Returns nullopt if the plan is not a grid of equal stages, or if all replicas are equally fast.
// `speeds` is indexed by the plan's devices.
std::optional<Plan> shared_by_speed(const Plan& plan, const std::vector<double>& speeds);
// Removes all replicas with a device that is slower than `min_speed` times the fastest device. The other
// replicas share the batch.
std::optional<Plan> without_slow_replicas(const Plan& plan, const std::vector<double>& speeds,
                                          double min_speed);
// Distributes layers over the stages by the speed of the slowest device in each stage and by `loads`, the
// measured load of each stage relative to the mean. Returns nullopt if there is only one stage, if stages
// differ in more than their layers, or if nothing changes. `head` is the cost of the head relative to a
// layer. If it is empty, the cost is estimated from the number of parameters.
std::optional<Plan> cut_by_speed(const Plan& plan, const ModelSpec& model, const std::vector<double>& speeds,
                                 const std::vector<double>& loads, std::optional<double> head = {});

// Adds a redundant copy of each optimizer shard to the plan, or removes the copies if it has them. Copies are
// placed on other nodes if possible. Returns nullopt if the state is not sharded.
std::optional<Plan> with_other_redundancy(Plan plan, const std::vector<int>& node_of_device);

}  // namespace optimus
