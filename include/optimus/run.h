// A training run in progress, controlled by the host program.
//
//   optimus::Run run({.model = "gpt2", .data = {"corpus.txt"}, .devices = 2},
//                    {.on_message = [](const std::string& line) { log(line); }});
//   while (std::optional<optimus::StepEvent> step = run.step()) plot(step->step, step->loss);
//   optimus::TrainResult result = run.wait();
//
// The training runs in processes of the worker program, optimus-engine, which is installed with the library.
// The host program therefore does not need PyTorch and is not affected if these processes crash. Nothing is
// written to the host program's console.
//
// The constructor returns once the processes have started. Errors in the options are thrown by the first call
// that needs the run (step, wait, switch_plan). Callbacks run one at a time, on a thread owned by the
// library. They may call stop() and status(), but not wait() or step(). All member functions may be called
// from any thread. The destructor stops the run and waits for its checkpoint. If the host program dies, the
// training saves a checkpoint and stops.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "optimus/error.h"
#include "optimus/export.h"
#include "optimus/options.h"
#include "optimus/train.h"

namespace optimus {
inline namespace v0 {

// One completed training step.
struct StepEvent {
  std::int64_t step = 0;  // from 1
  double loss = 0, grad_norm = 0, learning_rate = 0;
  std::int64_t tokens = 0;  // over all devices
  double seconds = 0, tokens_per_second = 0;
  std::int64_t plan_epoch = 0;  // number of plan changes so far
  bool is_skipped = false;      // the gradients were non-finite, so no parameter changed
  std::optional<double> validation_loss{};
};

// The plan has changed, or a worker was lost, joined or drained.
struct PlanEvent {
  std::int64_t step = 0;  // the last step before the event
  std::string kind;       // "switch", "recover", "join", "drain", "stay"
  std::string evidence;   // why it happened
  std::string from, to;   // plan hashes
  std::int64_t plan_epoch = 0;
  // Relative gain in steps per second; 0.25 means 25 % faster.
  std::optional<double> predicted_gain{}, measured_gain{};
  double pause_seconds = 0;
  std::int64_t moved_bytes = 0;
};

struct RunOptions {
  std::string worker_program{};  // path of optimus-engine; if empty, the one installed with the library
  std::function<void(const StepEvent&)> on_step{};
  std::function<void(const PlanEvent&)> on_plan{};
  std::function<void(const std::string& line)> on_message{};  // warnings and notes, one line each
};

struct WorkerState {
  int rank = 0, pid = 0;
  std::string host, device;
  std::string state;  // "running", "stopped", "gone", "on another host"
};

struct RunState {
  bool is_running = false;
  std::string run;  // the run folder; empty until the run has one
  std::int64_t step = 0, plan_epoch = 0;
  std::optional<std::int64_t> steps{};  // number of planned steps
  std::optional<double> loss{}, tokens_per_second{};
  std::string plan;  // short name of the plan, for example "dp4 zero1"
  std::vector<WorkerState> workers;
};

class OPTIMUS_API Run {
 public:
  // Throws Error when the worker program cannot be started.
  explicit Run(TrainOptions options, RunOptions run = {});
  ~Run();
  Run(Run&&) noexcept;
  Run& operator=(Run&&) noexcept;

  // Waits for the next completed step and returns it. Each step is returned once. Returns nullopt once the
  // run has ended. The training does not wait for the caller. Throws Error if the run has failed.
  std::optional<StepEvent> step();

  RunState status() const;

  // Moves the running training to another plan, given as the JSON text or the file name of a plan, or "auto"
  // for the best plan now. Waits for the switch and returns the line that describes it. Throws Error if the
  // switch is refused or times out. The run then continues with its current plan.
  std::string switch_plan(const std::string& plan, std::chrono::seconds timeout = std::chrono::seconds(600));

  // Requests a stop. The run saves a checkpoint and ends. Returns immediately.
  void stop();

  // Waits until the run has ended. Throws Error if it has failed.
  TrainResult wait();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace v0
}  // namespace optimus
