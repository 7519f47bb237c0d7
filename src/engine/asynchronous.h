// The additional state of asynchronous schedules (PipeDream, PipeMare). It consists of older weight versions,
// for backward passes that start after newer weights exist, and of a separate update for each micro-batch.
// Synchronous schedules allocate nothing here. docs/understand/parallelism.md has the formulas.
//
//   stage 1 of 3, PipeDream    F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 …
//                              U1 changes the weights that F2 used, so they are saved for B2
//
// A step begins and ends with an empty pipeline, so the order of the stage alone determines which weight
// version each micro-batch uses. The program decides when gradients are summed over devices. Read next:
// schedule/order.h, engine.cpp.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "engine/parameters.h"
#include "engine/update_options.h"
#include "plan/plan.h"
#include "schedule/order.h"
#include "schedule/program.h"

namespace optimus {

// Returns, for each micro-batch, the number of updates that the stage performs between its forward and its
// backward pass. All are 0 under synchronous schedules.
std::vector<int> delays(Schedule schedule, const StagePosition& position);

// Under PipeDream, stores a copy of each weight version that an outstanding backward pass needs. Under
// PipeMare, stores one copy of the weights, corrected for the delay, and the velocity of the weights.
class WeightVersions {
 public:
  // Allocates the memory. All arguments must outlive this object.
  WeightVersions(const Plan& plan, const Program& program, const Parameters& parameters);

  // Returns the index of the saved weight version that the backward pass of `microbatch` uses, or -1 for the
  // current weights.
  int version_of(int microbatch) const;
  // Returns the saved weights of a block, flat and laid out like whole buffers (block_shape.h). Undefined if
  // none are saved.
  at::Tensor weights(int block, int version) const;

  void set(const PipeMareOptions& options) { options_ = options; }
  // Called before every instruction. If `instruction` starts a backward pass under PipeMare, updates the
  // velocity and computes the corrected weights for that pass.
  void before_instruction(std::size_t instruction);
  // Called before `block` is updated with the gradient of `microbatch`. `changes` is false if the
  // micro-batch has no targets and therefore does not change the weights.
  void before_update(int block, int microbatch, bool changes);
  // Called when all updates of the step are complete.
  void end_step();
  Bytes bytes() const;

 private:
  void update_velocity();
  void correct(int delay);

  const Schedule schedule_;
  const Parameters& parameters_;
  PipeMareOptions options_;
  std::vector<int> delays_, blocks_;
  int longest_delay_ = 0;
  std::vector<bool> is_version_needed_;  // [version]: whether a later backward pass uses it
  std::vector<int> backward_starts_;     // [instruction]: micro-batch whose backward pass starts here, or -1
  std::vector<std::vector<at::Tensor>> saved_weights_;  // [block][version]
  std::vector<at::Tensor> velocities_;                  // [block]
  std::vector<bool> has_new_update_;  // [block]: whether it was updated since its velocity was computed
};

// The weight updates of one step, one per micro-batch. Every device has the step scalars
// (kernels/step_scalars.h) of all these updates.
class MicrobatchUpdates {
 public:
  MicrobatchUpdates(const Plan& plan, const PlanLocation& location, at::Device device);

  // `target_counts[m]` is the number of targets with a loss in micro-batch m, over all devices. A micro-batch
  // without such targets performs no update. `num_updates` is the number of updates performed before this
  // step.
  void begin(const std::vector<std::int64_t>& target_counts, const UpdateOptions& options,
             std::int64_t num_updates);
  bool is_empty(int microbatch) const {
    return !step_scalars_[static_cast<std::size_t>(microbatch)].defined();
  }
  const at::Tensor& step_scalars(int microbatch) const {
    return step_scalars_[static_cast<std::size_t>(microbatch)];
  }
  // Returns the one-element accumulator of the squared gradient norm of `microbatch`, where the loss is the
  // sum over targets.
  at::Tensor square_sum(int microbatch) const { return squares_.narrow(0, microbatch, 1); }
  // Returns the squared gradient norms for mean losses, summed over micro-batches: the sum of square_sum /
  // targets^2. Covers the elements that this device counts.
  at::Tensor all_squares() const;
  std::int64_t count() const { return count_; }

 private:
  const at::Device device_;
  const bool is_rescheduled_;
  std::int64_t num_microbatches_ = 0;
  // The largest number of updates between the weights that a forward pass reads and the weights that its
  // gradient produces
  int delay_ = 1;
  // [micro-batch]: step scalars as they are after a step gate (kernels/step_scalars.h); undefined if the
  // micro-batch performs no update
  std::vector<at::Tensor> step_scalars_;
  at::Tensor squares_, weights_;  // [micro-batch]: squared gradient norms; 1 / targets^2
  std::int64_t count_ = 0;
};

}  // namespace optimus
