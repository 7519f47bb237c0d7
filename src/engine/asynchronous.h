// Support for asynchronous schedules: the older weight versions that a backward pass needs while newer
// weights exist, and a separate update for each micro-batch. Synchronous schedules allocate nothing here.
// docs/understand/parallelism.md has the formulas.
//
//   stage 1 of 3, PipeDream    F0 F1 B0 U0 F2 B1 U1 F3 B2 U2 …
//                              U1 changes the weights that F2 used: they are saved for B2
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

// Number of updates that the stage makes between the forward and the backward of each micro-batch,
// [micro-batch]. All 0 under synchronous schedules.
std::vector<int> delays(Schedule schedule, const StagePosition& position);

// PipeDream: copies of the weights that outstanding forwards have used. PipeMare: one corrected copy, and the
// velocity.
class WeightVersions {
 public:
  // Allocates the memory. All arguments must outlive this object.
  WeightVersions(const Plan& plan, const Program& program, const Parameters& parameters);

  // The weight version that the backward of a micro-batch uses; -1: the newest.
  int version_of(int microbatch) const;
  at::Tensor weights(int block, int version) const;  // flat, in the order of whole buffers

  void set(const PipeMareOptions& options) { options_ = options; }
  // Called before every instruction. If the instruction begins a backward, prepares the weights for that
  // backward.
  void before(std::size_t instruction);
  // Called before a block is updated; `changes`: the update is not empty.
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
  std::vector<bool> is_version_needed_;  // [version]: needed by the backward of an outstanding micro-batch
  std::vector<int> backward_starts_;  // [instruction]: the micro-batch whose backward begins here; -1: none
  std::vector<std::vector<at::Tensor>> saved_weights_;  // [block][version]
  std::vector<at::Tensor> velocities_;                  // [block]
  std::vector<bool> has_new_update_;  // [block]: updated since its velocity was last computed
};

// The updates of one step, one per micro-batch. Every device has the data of all of them.
class MicrobatchUpdates {
 public:
  MicrobatchUpdates(const Plan& plan, const PlanLocation& location, at::Device device);

  // counted: number of targets of each micro-batch over all devices. A micro-batch without targets makes no
  // update.
  void begin(const std::vector<std::int64_t>& counted, const UpdateOptions& options,
             std::int64_t num_updates);
  bool is_empty(int microbatch) const { return !numbers_[static_cast<std::size_t>(microbatch)].defined(); }
  const at::Tensor& numbers(int microbatch) const { return numbers_[static_cast<std::size_t>(microbatch)]; }
  // One element, an accumulator for the sum of squares of the micro-batch's gradient (of the summed loss).
  at::Tensor square_sum(int microbatch) const { return squares_.narrow(0, microbatch, 1); }
  // The same sums for mean losses, on this device.
  at::Tensor all_squares() const;
  std::int64_t count() const { return count_; }

 private:
  const at::Device device_;
  const bool is_rescheduled_;
  std::int64_t num_microbatches_ = 0;
  // updates between the weights that a forward reads and the weights that its gradient produces
  int delay_ = 1;
  std::vector<at::Tensor> numbers_;  // [micro-batch], as after a gate (kernels/step_scalars.h)
  at::Tensor squares_, weights_;     // [micro-batch]: the sums, and the factor of each
  std::int64_t count_ = 0;
};

}  // namespace optimus
