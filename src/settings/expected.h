// What a training should take on this machine, where `optimus profile --hardware` has measured it.
#pragma once

#include <optional>
#include <string>

#include "base/event.h"
#include "cluster/hardware.h"
#include "plan/plan.h"
#include "schedule/program.h"
#include "simulate/simulate.h"

namespace optimus {

// The measured type of that name ("cpu", "h200"), if this machine was measured. A file that cannot be read is warned of.
std::optional<DeviceType> measured_type(const std::string& name, EventSink& events);

// So many devices of that type, joined as this machine was measured; processors are shared by so many workers. Nothing where kernels of
// the precision were not measured.
struct MeasuredMachine {
  Cluster cluster;
  Constants constants;
};
std::optional<MeasuredMachine> measured_machine(const std::string& name, bool is_gpu, int num_devices,
                                                int num_sharing, Precision precision, EventSink& events);

// Seconds of a step of a plan of one device; nothing when kernels of its precision were not measured, or the model is no
// transformer.
std::optional<double> expected_step_seconds(const DeviceType& type, const Plan& plan, const ModelSpec& model);

// The step of any plan, instruction by instruction, on devices of one type of this machine: as it was measured, else as standard
// clusters have it. Several workers on a processor share what was measured of all of it.
struct ExpectedStep {
  std::string by;  // what the figures come from
  StepPrediction step;
  std::vector<TracedInstruction> instructions;
};
// Nothing for a model that is no transformer.
std::optional<ExpectedStep> expected_step(const std::string& type, bool is_gpu, const Plan& plan,
                                          const ModelSpec& model, EventSink& events);

// Of each instruction of a device's program, on devices of a type as standard clusters name them (processors are taken as one core
// each); empty for models of modules.
std::vector<double> predicted_seconds(const std::string& type, const Plan& plan, const ModelSpec& model,
                                      const Program& program);

}  // namespace optimus
