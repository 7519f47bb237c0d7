// See fp8_scales.h.
#include "engine/fp8_scales.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "base/error.h"

namespace optimus {
namespace {
constexpr int kScaleStride = 4;
}

Fp8Scales::Fp8Scales(const Plan& plan, at::Device device)
    : num_slots_(num_fp8_slots(plan)),
      window_(plan.fp8.window),
      is_current_(plan.fp8.scaling == Fp8Scaling::current),
      has_layer_(static_cast<std::size_t>(plan.num_blocks - 2)),
      has_rounded_weights_(has_layer_.size()) {
  for (const int block : fp8_blocks(plan)) has_layer_[static_cast<std::size_t>(block - 1)] = true;
  const at::TensorOptions options = at::TensorOptions(at::kFloat).device(device);
  maxima_ = at::zeros({num_slots_}, options);
  scales_ = at::ones({num_slots_, kScaleStride}, options),
  inverses_ = at::ones({num_slots_, kScaleStride}, options);
  host_scales_ =
      at::ones({2, num_slots_, kScaleStride}, at::TensorOptions(at::kFloat).pinned_memory(device.is_cuda()));
}

void Fp8Scales::begin_step(bool is_training) {
  ++step_number_;
  is_measured_ = is_training, uses_fp8_ = !history_.is_empty();
  if (is_training) maxima_.zero_();
  if (!uses_fp8_) return;
  auto* const scales = host_scales_.data_ptr<float>();
  for (int slot = 0; slot < num_slots_; ++slot) {
    const auto operand = static_cast<Fp8Operand>(slot % kNumFp8Operands);
    const int exponent = fp8_exponent(operand, history_.maximum(slot));
    scales[kScaleStride * slot] = std::ldexp(1.0f, exponent);
    scales[kScaleStride * (num_slots_ + slot)] = std::ldexp(1.0f, -exponent);
  }
  scales_.copy_(host_scales_[0], /*non_blocking=*/true),
      inverses_.copy_(host_scales_[1], /*non_blocking=*/true);
}

void Fp8Scales::end_step(bool is_skipped) {
  if (is_skipped) return;
  const at::Tensor host_maxima = maxima_.to(at::kCPU);
  const auto* const values = host_maxima.const_data_ptr<float>();
  history_.add({values, values + num_slots_}, window_);
}

void Fp8Scales::measure(int slot, const at::Tensor& tensor) {
  if (!is_measured_) return;
  at::Tensor maximum = maxima_.select(0, slot);
  update_maximum(tensor, maximum);
}

Fp8Scale Fp8Scales::scale_for(int slot, const at::Tensor& tensor) const {
  const auto operand = static_cast<Fp8Operand>(slot % kNumFp8Operands);
  if (is_scale_known(operand)) return {scale(slot), inverse(slot)};
  at::Tensor maximum = at::zeros({}, maxima_.options());
  update_maximum(tensor, maximum);
  return fp8_scale_for(operand, maximum);
}

void Fp8Scales::set_history(Fp8History history) {
  history_ = {};
  for (std::vector<float>& step : history.steps) {
    if (std::ssize(step) != num_slots_)
      throw UserError(
          "the fp8 history has amax values for {} operands, but the model has {}; it belongs to another "
          "model",
          step.size(), num_slots_);
    history_.add(std::move(step), window_);
  }
}

}  // namespace optimus
