// Watching: what one rank does so that the run knows how it goes: measures its own steps, and passes on what it and the ranks below it in
// the tree have seen. At rank 0 that ends in Deciding.
//
// Ranks collect after the same steps, as the steps' agreement says (StepWord::collects): every step, where one takes a tenth of a second or
// more; else the mean of several. On CUDA computing is timed by events in the stream and what joins devices by whatever carries it, only in
// the first step of several; where steps can be recorded (on one device) that would end it, and nobody could do better anyhow. Beside it
// the device says what its clock is. One thread.
#pragma once

#include <functional>
#include <optional>

#include "adapt/adaptation_controller.h"
#include "adapt/step_meter.h"
#include "observe/device_sensor.h"
#include "switching/observation_tree.h"
#include "switching/plan_switch.h"

namespace optimus {

class Watching {
 public:
  struct Facts {
    Comm& comm;
    const ModelSpec& model;
    Seconds patience;
    std::function<std::vector<double>(const Plan& plan, const Program& program)> predicted;
    at::Device device;
    AdaptationController* controller = nullptr;  // at rank 0
    std::function<void(const Observation& seen, const std::vector<Finding>& findings)>
        keep{};  // at rank 0: what is worth keeping
  };
  Watching(Facts facts, const PlanPart& part);

  // Around a step of a rank with a part.
  void begin_step(Engine& engine);
  void end_step(Engine& engine, const MeasuredStep& step);
  // After every step, before the plan may change, by all ranks.
  void receive() { tree_.receive(); }
  // After some, when it has changed or not, by all ranks.
  void collect(std::int64_t step);
  // What this rank says about that for the next step.
  bool wants_to_collect();
  // Whether all are to look which machines are slow; said once.
  bool wants_to_probe() { return facts_.controller != nullptr && facts_.controller->take_probe_request(); }
  // After the same step, by all ranks.
  void probe();
  // The part is of another plan.
  void took(const PlanPart& part);

  AdaptationController* controller() const { return facts_.controller; }

 private:
  const Facts facts_;
  ObservationTree tree_;
  std::optional<StepMeter> meter_;              // none: no part
  std::optional<InstructionLog> log_;           // none: no part, or steps may be recorded
  bool is_due_ = true;                          // on CUDA: no step was timed since the last collection
  const std::unique_ptr<DeviceSensor> sensor_;  // none: the device tells nothing
  std::chrono::steady_clock::time_point collected_;
};

}  // namespace optimus
