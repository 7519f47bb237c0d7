// RankMonitor measures one rank's steps and forwards the observations of this rank, and of the ranks below it
// in the observation tree. On rank 0, the observations reach the AdaptationController.
//
// All ranks collect after the same steps, as the step agreement specifies (StepVote::collects). If a step
// takes a tenth of a second or more, they collect after every step, otherwise the mean of several steps. On
// CUDA, events in the stream time the computation and the transport times the communication, both only in the
// first of these steps. Steps that can be recorded as CUDA graphs (on one device) are not timed, because
// timing would prevent recording. The device's clock rate is added to the observations. Not thread-safe.
#pragma once

#include <functional>
#include <optional>

#include "adapt/adaptation_controller.h"
#include "adapt/step_meter.h"
#include "observe/device_sensor.h"
#include "switching/observation_tree.h"
#include "switching/plan_switch_controller.h"

namespace optimus {

class RankMonitor {
 public:
  struct Facts {
    Comm& comm;
    const ModelSpec& model;
    Seconds timeout;
    std::function<std::vector<double>(const Plan& plan, const Program& program)> predicted_times;
    at::Device device;
    AdaptationController* controller = nullptr;  // on rank 0
    // On rank 0: records an observation if it will be needed later.
    std::function<void(const Observation& observation, const std::vector<Finding>& findings)> record{};
  };
  RankMonitor(Facts facts, const PlanPart& part);

  // Called before and after each step on ranks that the plan uses.
  void begin_step(Engine& engine);
  void end_step(Engine& engine, const MeasuredStep& step);
  // Called by all ranks after every step, before the plan may change.
  void receive() { tree_.receive(); }
  // Called by all ranks after the agreed steps, whether or not the plan has changed.
  void collect(std::int64_t step);
  // Whether this rank wants to collect after the next step.
  bool wants_to_collect();
  // Whether all ranks should run a probe to find slow machines. Returns true once per request.
  bool wants_to_probe() { return facts_.controller != nullptr && facts_.controller->take_probe_request(); }
  // Runs the probe. Called by all ranks after the same step.
  void probe();
  // Called when an attempt to switch the plan has ended. `part` is this rank's part of the plan in use.
  void switch_ended(const SwitchOutcome& outcome, const PlanPart& part, std::int64_t step);

  AdaptationController* controller() const { return facts_.controller; }

 private:
  void monitor_part(const PlanPart& part);

  const Facts facts_;
  ObservationTree tree_;
  std::optional<StepMeter> meter_;  // empty if the plan does not use the rank
  // Empty if the plan does not use the rank, or if steps may be recorded as CUDA graphs.
  std::optional<InstructionLog> log_;
  bool is_due_ = true;                          // on CUDA: no step has been timed since the last collection
  const std::unique_ptr<DeviceSensor> sensor_;  // null if the device has no sensor
  std::chrono::steady_clock::time_point last_collection_;
};

}  // namespace optimus
