// The expected step time of a training on this machine, from the measurements of `optimus profile
// --hardware`, else from typical figures.
#pragma once

#include <optional>
#include <string>

#include "base/event.h"
#include "cluster/hardware.h"
#include "plan/plan.h"
#include "schedule/program.h"
#include "simulate/simulate.h"

namespace optimus {

// The measured device type of that name ("cpu", "h200"), if this machine was measured. Warns if the file
// cannot be read.
std::optional<DeviceType> measured_type(const std::string& name, EventSink& events);

// `num_devices` devices of the measured type, connected as measured on this machine;
// `workers_per_processor` workers share a processor. Returns nullopt if no kernels of the precision were
// measured.
struct MeasuredMachine {
  Cluster cluster;
  Constants constants;
};
std::optional<MeasuredMachine> measured_machine(const std::string& name, bool is_gpu, int num_devices,
                                                int workers_per_processor, Precision precision,
                                                EventSink& events);

// Seconds per step of a single-device plan. Returns nullopt if no kernels of its precision were measured,
// or if the model is not a transformer.
std::optional<double> expected_step_seconds(const DeviceType& type, const Plan& plan, const ModelSpec& model);

// The predicted step of any plan, instruction by instruction, on devices of one type: from measurements of
// this machine, else from the standard cluster of that type. Several workers on one processor share its
// measured throughput.
struct ExpectedStep {
  std::string by;  // the source of the figures
  StepPrediction step;
  std::vector<TracedInstruction> instructions;
};
// Returns nullopt if the model is not a transformer.
std::optional<ExpectedStep> expected_step(const std::string& type, bool is_gpu, const Plan& plan,
                                          const ModelSpec& model, EventSink& events);

// Predicted seconds of each instruction of a device's program, on a standard cluster of that device type (a
// processor device counts as one core). Empty for models that consist of torch modules.
std::vector<double> predicted_seconds(const std::string& type, const Plan& plan, const ModelSpec& model,
                                      const Program& program);

}  // namespace optimus
