// Chooses the plan of a training on several devices when the user gives none: the planner's best among the
// plans that the engine can run.
#pragma once

#include <optional>
#include <string>

#include "cluster/hardware.h"
#include "elastic/interim_plan.h"
#include "plan/plan.h"
#include "search/demand.h"
#include "settings/device_facts.h"
#include "settings/options.h"

namespace optimus {

// A mean time between failures so short that redundant copies of the state are always worth their cost to
// the planner. Used for runs that must tolerate lost workers.
inline constexpr Seconds kShortMtbf{600};

struct ChosenPlan {
  Plan plan;
  std::string note;  // one line: the number of candidates, and why the next best was not chosen
};

// Requires that batch, sequence length and precision are resolved. Uses all of `options.devices`. Throws
// UserError if nothing fits.
ChosenPlan choose_plan(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device);

// For runs without --devices: a plan for all available devices, or for as many as the model and the batch
// can use. Returns nullopt if that is a single device. Throws UserError if the constraints cannot be met.
std::optional<ChosenPlan> choose_plan_for_all(const TrainOptions& options, const ModelSpec& model,
                                              const DeviceFacts& device);

// A plan for `size` devices after their number has changed: one that meets the user's constraints if
// possible, else the best plan; some devices stay idle if not all can be used. Prefers plans with redundant
// copies of the state. Throws UserError if nothing fits.
Plan plan_for_size(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device, int size);

// `size` devices with the usual properties of their type. Workers on a processor share its memory.
HardwareProfile default_machines(const DeviceFacts& device, int size);

// The memory that later plans may use while a running plan uses `held` bytes on each of `num_sharing`
// workers of this machine: the free memory plus the memory of the running plan.
DeviceFacts with_memory_of_plan(DeviceFacts device, Bytes held, int num_sharing);

// The input of a planner search for this training on a cluster. `options`, `model` and `cluster` must
// outlive it.
Demand demand_of(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
                 const Cluster& cluster);

// The callbacks that `InterimPlanner` uses when ranks are lost or join (interim_plan.h), in a run of at most
// `most_devices` devices.
InterimPlanner::Inputs first_answers(const TrainOptions& options, const ModelSpec& model,
                                     const DeviceFacts& device, int most_devices);

}  // namespace optimus
