// Chooses a plan for training on several devices if the user does not specify one. It is the planner's best
// plan that the engine can run.
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

// For runs without --devices. Returns a plan for as many of the available devices as the model and the batch
// can use, or nullopt if that is a single device. The requested number of devices is ignored. Infeasible if
// the layout constraints cannot be met.
Feasible<std::optional<ChosenPlan>> choose_plan_for_all(const PlannerRequest& request);

// Returns a plan for `size` devices after the number of devices has changed. The plan meets the user's
// constraints if possible. Devices that cannot be used stay idle. Prefers plans with redundant copies of the
// state. Infeasible if no plan fits.
Feasible<Plan> plan_for_size(const PlannerRequest& request, int size);

// A cluster of `size` devices with the typical properties of their type. Workers on the same CPU share its
// memory.
HardwareProfile default_machines(const DeviceFacts& device, int size);

// Returns `device` with the memory that a new plan may use while the current plan has `plan_bytes` bytes on
// each of `workers_per_processor` workers on this machine. This is the free memory plus the memory of the
// current plan.
DeviceFacts with_memory_of_plan(DeviceFacts device, Bytes plan_bytes, int workers_per_processor);

// Returns the planner's input for this training on a cluster. The request's model and the cluster must
// outlive it.
Demand demand_of(const PlannerRequest& request, const Cluster& cluster);

// Returns the callbacks that `InterimPlanner` uses when ranks are lost or join (interim_plan.h). The run has
// at most `max_devices` devices. The request's model must outlive the callbacks.
InterimPlanner::Inputs first_answers(const PlannerRequest& request, int max_devices);

}  // namespace optimus
