// Answers to conditions: plans that may be better as the machines are now, from cheap to dear. Which of them, if any, is a policy's
// choice (adapt/decide.h).
#pragma once

#include <vector>

#include "adapt/decide.h"
#include "recovery/recovery_costs.h"
#include "search/search.h"

namespace optimus {

struct PlannedOption {
  PlanOption option;
  Plan plan;
  std::vector<int>
      dropped{};  // devices that it does without; the plan's devices are then the others in their order
};

struct ResponseLimits {
  int most_simulations = 40;    // of the planner
  int alternatives = 3;         // of its plans
  int searched_devices = 4096;  // with more, only plans that are known are weighed: a search takes seconds
  std::vector<Plan> known{};    // found before
  int refined_devices =
      128;  // up to so many the planner also looks beyond its grid, which takes seconds with more
};

// How the planner looks for answers on so many devices.
SearchLimits search_limits(const ResponseLimits& limits, int num_devices, int alternatives);

// What a change between these plans pauses training for: moving what a device holds of the state, unless nothing moves.
double pause_of(const RecoveryCosts& costs, const ModelSpec& model, const Plan& plan, bool moves_state);

// The first is the plan itself. The demand's cluster is the one without conditions; `conditions` are what is known now.
// Every plan is valid and fits; plans that are the same stand once. Conditions that no plan changes anything about give one option.
std::vector<PlannedOption> responses(const Demand& usual, const Plan& plan,
                                     const std::vector<Condition>& conditions, const RecoveryCosts& costs,
                                     const ResponseLimits& limits = {});

// Replicas of different speed as pipelines of their own, each with sequences by its speed. Nothing where the plan is not a grid
// of equal stages, or all are equally fast. `speeds`: of each device of the plan.
std::optional<Plan> shared_by_speed(const Plan& plan, const std::vector<double>& speeds);
// The same without the replicas that have a slow device, slower than `least` of the quickest: the others share the batch.
std::optional<Plan> without_slow_replicas(const Plan& plan, const std::vector<double>& speeds, double least);
// Layers dealt to the stages by the speed of their slowest device, and by what `loads` says of stages that have more to do than
// their layers. Nothing where stages are few or differ in more than their layers, or nothing changes. head: what it takes, of what a
// layer does; nothing: as its parameters say.
std::optional<Plan> cut_by_speed(const Plan& plan, const ModelSpec& model, const std::vector<double>& speeds,
                                 const std::vector<double>& loads, std::optional<double> head = {});

// The same plan with its sharded state held once instead of twice, or twice instead of once, on other nodes where there are such. Nothing
// where state is not sharded.
std::optional<Plan> with_other_redundancy(Plan plan, const std::vector<int>& node_of_device);

}  // namespace optimus
