// Scales and amax values of fp8 operands (plan/fp8.h) on the device. Before a step, the scales of all slots
// are computed from the history and copied to the device. During the step, GEMMs measure the amax values of
// their operands. At the step gate (schedule/program.h) they are reduced over all devices, and after the step
// they are appended to the history. Every device has the complete history, so the history survives the loss
// of devices, and any rank can write it to a checkpoint.
//
// Only end_step() waits for the device, at a point where the step has ended anyway. Read next: fp8_gemm.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "kernels/fp8.h"
#include "model/spec.h"
#include "plan/fp8.h"

namespace optimus {

class Fp8Scales {
 public:
  Fp8Scales(const Plan& plan, at::Device device);

  bool has_layer(int layer) const { return has_layer_[static_cast<std::size_t>(layer)]; }

  // Computes the scales from the history. If `is_training`, resets the amax values to 0; otherwise operands
  // are not measured.
  void begin_step(bool is_training);
  // [slots], fp32: largest absolute value of each slot's operand on this device in this step. Before
  // end_step(), the caller replaces these values with the maxima over all devices.
  at::Tensor& maxima() { return maxima_; }
  // Appends the amax values to the history unless the step was skipped.
  void end_step(bool is_skipped);

  // Returns the number of calls of begin_step(). Weights do not change while this number stays the same.
  std::int64_t step_number() const { return step_number_; }
  bool is_measured() const { return is_measured_; }
  // Returns false while there is no history. GEMMs then run without fp8.
  bool uses_fp8() const { return uses_fp8_; }
  at::Tensor scale(int slot) const { return scales_.select(0, slot).select(0, 0); }
  at::Tensor inverse(int slot) const { return inverses_.select(0, slot).select(0, 0); }
  // Returns the scale of the slot. With current scaling, the scale of inputs and gradients is computed from
  // `tensor`.
  Fp8Scale scale_for(int slot, const at::Tensor& tensor) const;
  // Returns whether the scale is known before the tensor exists, so that the tensor's producer can write
  // directly in fp8.
  bool is_scale_known(Fp8Operand operand) const { return !is_current_ || operand == Fp8Operand::weight; }
  void measure(int slot, const at::Tensor& tensor);
  // Declares that, in steps that use fp8, the GEMMs get the weights of this layer already rounded and
  // measured by the ranks that own them (fp8_shards.h).
  void expect_rounded_weights(int layer) { has_rounded_weights_[static_cast<std::size_t>(layer)] = true; }
  bool has_rounded_weights(int layer) const {
    return uses_fp8_ && has_rounded_weights_[static_cast<std::size_t>(layer)];
  }
  // Returns the slot's element of maxima(), for kernels that measure their own output. Undefined if operands
  // are not measured in this step.
  at::Tensor maximum(int slot) const { return is_measured_ ? maxima_.select(0, slot) : at::Tensor(); }

  const Fp8History& history() const { return history_; }
  // Sets the history, which comes from a checkpoint or another engine. If it is longer than the window, its
  // oldest steps are dropped. Throws UserError if its number of slots differs from the model's.
  void set_history(Fp8History history);

 private:
  const int num_slots_, window_;
  const bool is_current_;  // current scaling: the scale is computed from the tensor itself
  std::vector<bool> has_layer_, has_rounded_weights_;
  Fp8History history_;
  at::Tensor maxima_;  // [slots], fp32, on the device
  // [slots, 4], where only element 0 of each row is used, because cuBLASLt requires addresses that are
  // aligned to 16 bytes.
  at::Tensor scales_, inverses_;
  at::Tensor host_scales_;  // [2, slots, 4]: the scales and inverses that the host has computed
  bool is_measured_ = false, uses_fp8_ = false;
  std::int64_t step_number_ = 0;
};

}  // namespace optimus
