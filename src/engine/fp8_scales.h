// Scales and maxima of 8-bit products (plan/fp8.h) where the tensors are. Before a step the scales of all slots, from the history,
// go to the device; products measure what they are given; at the gate devices agree on maxima; behind the step they join the history.
// Every device has the whole history: whoever is left of a run has it, and a checkpoint takes it from anybody.
//
// Nothing here waits for the device but end_step, behind which a step has ended anyway. Read next: fp8_products.h.
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

  bool has(int layer) const { return has_layer_[static_cast<std::size_t>(layer)]; }

  // Scales of the history; maxima begin at 0. A pass that is not for training is not measured.
  void begin_step(bool is_training);
  // [slots], fp32: the largest of this device so far. To become the largest of all devices before end_step.
  at::Tensor& maxima() { return maxima_; }
  // Reads the maxima. They count when the step did.
  void end_step(bool counts);

  // The step under way: its number, which changes with the weights.
  std::int64_t number() const { return number_; }
  bool is_measured() const { return is_measured_; }
  bool is_narrow() const {
    return is_narrow_;
  }  // false: there is no history yet, products are as without fp8
  at::Tensor scale(int slot) const { return scales_.select(0, slot).select(0, 0); }
  at::Tensor inverse(int slot) const { return inverses_.select(0, slot).select(0, 0); }
  // The slot's; with scales of the tensor at hand, this tensor's own.
  Fp8Scale scale_for(int slot, const at::Tensor& tensor) const;
  // Known before the tensor is: whoever makes it can write it in 8 bits.
  bool is_known(Fp8Operand operand) const { return !is_current_ || operand == Fp8Operand::weight; }
  void measure(int slot, const at::Tensor& tensor);
  // Of this layer, products get weights that their owners have rounded and measured (narrow_shards.h), in steps that are narrow.
  void expect_rounded_weights(int layer) { has_rounded_weights_[static_cast<std::size_t>(layer)] = true; }
  bool has_rounded_weights(int layer) const {
    return is_narrow_ && has_rounded_weights_[static_cast<std::size_t>(layer)];
  }
  // Of this device, to be raised by who measures by himself; undefined where nothing is measured.
  at::Tensor maximum(int slot) const { return is_measured_ ? maxima_.select(0, slot) : at::Tensor(); }

  const Fp8History& history() const { return history_; }
  // Of a checkpoint or another engine. A longer one than the window loses its oldest steps. Throws UserError for another model's.
  void set_history(Fp8History history);

 private:
  const int num_slots_, window_;
  const bool is_current_;  // scales of the tensor at hand
  std::vector<bool> has_layer_, has_rounded_weights_;
  Fp8History history_;
  at::Tensor maxima_;             // [slots], fp32, on the device
  at::Tensor scales_, inverses_;  // [slots, 4], of which the first counts: libraries want them at 16 bytes
  at::Tensor host_;               // [2, slots, 4]: these as the host makes them
  bool is_measured_ = false, is_narrow_ = false;
  std::int64_t number_ = 0;
};

}  // namespace optimus
