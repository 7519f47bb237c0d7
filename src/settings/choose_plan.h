// Chooses the plan of a training on several devices when the user gives none: the planner's best among the
// plans that the engine can run.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "cluster/hardware.h"
#include "elastic/interim_plan.h"
#include "plan/plan.h"
#include "search/demand.h"
#include "settings/device_facts.h"
#include "settings/planner_request.h"

namespace optimus {

struct ChosenPlan {
  Plan plan;
  std::string note;  // one line: the number of candidates, and why the next best was not chosen
};

// Uses all requested devices. Infeasible if no plan fits.
Feasible<ChosenPlan> choose_plan(const PlannerRequest& request);

// For runs without --devices: a plan for all available devices, or for as many as the model and the batch
// can use; the requested number is ignored. Empty if that is a single device. Infeasible if the constraints
// of the layout cannot be met.
Feasible<std::optional<ChosenPlan>> choose_plan_for_all(const PlannerRequest& request);

// A plan for `size` devices after their number has changed: a plan that meets the user's constraints if
// possible, otherwise the best plan. Some devices stay idle if not all can be used. Prefers plans with
// redundant copies of the state. Infeasible if no plan fits.
Feasible<Plan> plan_for_size(const PlannerRequest& request, int size);

// `size` devices with the usual properties of their type. Workers on a processor share its memory.
HardwareProfile default_machines(const DeviceFacts& device, int size);

// The memory that later plans may use while a running plan owns `plan_bytes` bytes on each of
// `workers_per_processor` workers of this machine: the free memory plus the memory of the running plan.
DeviceFacts with_memory_of_plan(DeviceFacts device, Bytes plan_bytes, int workers_per_processor);

// The planner's demand for this training on a cluster. The request's model and the cluster must outlive it.
Demand demand_of(const PlannerRequest& request, const Cluster& cluster);

// The callbacks that `InterimPlanner` uses when ranks are lost or join (interim_plan.h), in a run of at
// most `max_devices` devices. The request's model must outlive them.
InterimPlanner::Inputs first_answers(const PlannerRequest& request, int max_devices);

}  // namespace optimus
