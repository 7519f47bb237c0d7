// The expected step time of a training on this machine, based on the measurements of `optimus profile
// --hardware` if they exist, otherwise on typical values.
#pragma once

#include <optional>
#include <string>

#include "base/event.h"
#include "cluster/hardware.h"
#include "plan/plan.h"
#include "schedule/program.h"
#include "simulate/simulate.h"

namespace optimus {

// Returns the device type with this name ("cpu", "h200") if this machine has been measured. Reports a warning
// if the file cannot be read.
std::optional<DeviceType> measured_type(const std::string& name, EventSink& events);

// A cluster of `num_devices` devices of the measured type, connected as measured on this machine.
// `workers_per_processor` workers share a CPU. Returns nullopt if no kernels with this precision were
// measured.
struct MeasuredMachine {
  Cluster cluster;
  Constants constants;
};
std::optional<MeasuredMachine> measured_machine(const std::string& name, bool is_gpu, int num_devices,
                                                int workers_per_processor, Precision precision,
                                                EventSink& events);

// Predicted seconds per step of a single-device plan. Returns nullopt if no kernels with its precision were
// measured, or if the model is not a transformer.
std::optional<double> expected_step_seconds(const DeviceType& type, const Plan& plan, const ModelSpec& model);

// The predicted step of a plan, instruction by instruction, on devices of one type. It is based on
// measurements of this machine if they exist, otherwise on the standard cluster of that type. Workers on the
// same CPU share its measured throughput.
struct ExpectedStep {
  std::string by;  // the source of the values
  StepPrediction step;
  std::vector<TracedInstruction> instructions;
};
// Returns nullopt if the model is not a transformer.
std::optional<ExpectedStep> expected_step(const std::string& type, bool is_gpu, const Plan& plan,
                                          const ModelSpec& model, EventSink& events);

// Predicted seconds for each instruction of a device's program, on a standard cluster of that device type,
// where a CPU device is one core. Returns an empty vector for models that consist of torch modules.
std::vector<double> predicted_seconds(const std::string& type, const Plan& plan, const ModelSpec& model,
                                      const Program& program);

}  // namespace optimus
