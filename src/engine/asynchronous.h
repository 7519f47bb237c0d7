// What an asynchronous schedule needs beside the program: weights that a backward works with though newer ones are there, and an
// update of its own for each micro-batch. Synchronous schedules keep nothing here. docs/parallelism.md has the formulas.
//
//   stage 1 of 3, PipeDream    F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 …        U1 is about to change what F2 used: it is kept for B2
//
// A step begins and ends with an empty pipeline, so which micro-batch meets which version follows from the stage's order alone.
// Not here: when gradients are added up over devices (the program says so). Read next: schedule/order.h, engine.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "engine/parameters.h"
#include "plan/plan.h"
#include "schedule/order.h"
#include "schedule/program.h"

namespace optimus {

struct UpdateOptions;  // engine.h

// Yang et al., "PipeMare": D and K. Without either the delay is left as it is.
struct PipeMareOptions {
  double decay = 0.135;  // D: how much of the old velocity is left after one delay; 0: nothing is corrected
  std::int64_t num_rescheduled =
      0;  // K: updates in which step sizes grow to the given one; 0: they are that at once
};

// Updates of the stage between a micro-batch's forward and its backward, [micro-batch]. All 0 under synchronous schedules.
std::vector<int> delays(Schedule schedule, const StagePosition& at);

// PipeDream: copies of the weights that forwards under way have used. PipeMare: one corrected copy, and the velocity.
class WeightVersions {
 public:
  // Takes the memory. All must outlive this.
  WeightVersions(const Plan& plan, const Program& program, const Parameters& parameters);

  // The version that the backward of a micro-batch works with; -1: the newest.
  int version_of(int microbatch) const;
  at::Tensor weights(int block, int version) const;  // flat, in whole order

  void set(const PipeMareOptions& options) { options_ = options; }
  // Before any instruction: where it begins a backward, makes the weights for that.
  void before(std::size_t instruction);
  // Before a block is updated; `changes`: with something.
  void before_update(int block, int microbatch, bool changes);
  // When all updates of the step are complete.
  void end_step();
  Bytes bytes() const;

 private:
  void follow_velocity();
  void correct(int delay);

  const Schedule schedule_;
  const Parameters& parameters_;
  PipeMareOptions options_;
  std::vector<int> delays_, blocks_;
  int longest_delay_ = 0;
  std::vector<bool> is_wanted_;                // [version]: by the backward of a micro-batch under way
  std::vector<int> begins_;                    // [instruction]: the micro-batch whose backward begins; -1
  std::vector<std::vector<at::Tensor>> kept_;  // [block][version]
  std::vector<at::Tensor> velocities_;         // [block]
  std::vector<bool> is_moving_;                // [block]: updated since its velocity was last looked at
};

// The updates of one step, one for each micro-batch; every device knows all of them.
class MicrobatchUpdates {
 public:
  MicrobatchUpdates(const Plan& plan, const Seat& seat, at::Device device);

  // counted: targets of each micro-batch on all devices. Where there are none nothing is updated.
  void begin(const std::vector<std::int64_t>& counted, const UpdateOptions& options,
             std::int64_t num_updates);
  bool is_empty(int microbatch) const { return !numbers_[static_cast<std::size_t>(microbatch)].defined(); }
  const at::Tensor& numbers(int microbatch) const { return numbers_[static_cast<std::size_t>(microbatch)]; }
  // One element, to which the squares of the micro-batch's gradient are added, of the summed loss.
  at::Tensor square_sum(int microbatch) const { return squares_.narrow(0, microbatch, 1); }
  // Those of mean losses, on this device.
  at::Tensor all_squares() const;
  std::int64_t count() const { return count_; }

 private:
  const at::Device device_;
  const bool is_rescheduled_;
  std::int64_t num_microbatches_ = 0;
  int delay_ = 1;  // updates from the weights that a forward reads to those that its gradient makes
  std::vector<at::Tensor> numbers_;  // [micro-batch], as behind a gate (kernels/step_numbers.h)
  at::Tensor squares_, weights_;     // [micro-batch]: sums, and what each is multiplied by
  std::int64_t count_ = 0;
};

}  // namespace optimus
