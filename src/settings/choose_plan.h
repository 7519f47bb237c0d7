// The plan of a training on several devices that nobody wrote: the planner's best among those that the engine can run.
#pragma once

#include <optional>
#include <string>

#include "cluster/hardware.h"
#include "elastic/first_answer.h"
#include "plan/plan.h"
#include "search/demand.h"
#include "settings/options.h"
#include "settings/settings.h"

namespace optimus {

// A mean time between failures with which no plan without copies of its state is worth its speed: for runs that are to survive.
inline constexpr Seconds kSoon{600};

struct ChosenPlan {
  Plan plan;
  std::string note;  // one line: of how many, and why the next best is not it
};

// Batch, sequence length and precision are resolved. All of options.devices are used. Throws UserError when nothing fits.
ChosenPlan choose_plan(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device);

// Where nobody said how many devices: a plan for all that are there, or for as many as model and batch can use. Nothing when that
// is one. Throws UserError when what was asked of the plan cannot be.
std::optional<ChosenPlan> choose_plan_for_all(const TrainOptions& options, const ModelSpec& model,
                                              const DeviceFacts& device);

// For so many devices, whatever was asked of the plan when there were more or fewer: as that, where it can be, else the best; idle
// ones where not all can be used. One that holds all state twice is preferred. Throws UserError when nothing fits.
Plan plan_for_any(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device, int size);

// So many devices as is usual of their type. Workers on a processor have what it has for each of them.
HardwareProfile usual_machines(const DeviceFacts& device, int size);

// What plans to come have while one runs that holds so much on each worker, of which so many share this machine: that, too.
DeviceFacts with_room_of(DeviceFacts device, Bytes held, int num_sharing);

// What the planner is asked for this training on a cluster. Options, model and cluster must outlive it.
Demand demand_of(const TrainOptions& options, const ModelSpec& model, const DeviceFacts& device,
                 const Cluster& cluster);

// What answers when ranks are lost or come (first_answer.h), in a run of up to so many.
FirstAnswers::Facts first_answers(const TrainOptions& options, const ModelSpec& model,
                                  const DeviceFacts& device, int most_devices);

}  // namespace optimus
