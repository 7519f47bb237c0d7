// Selects the kernels for a device, and implements the functions shared by all kernels.
#include <ATen/ops/zeros.h>
#ifdef OPTIMUS_CUDA
#include <ATen/cuda/CUDAContextLight.h>
#endif

#include "kernels/host.h"
#include "kernels/kernels.h"

namespace optimus {

std::unique_ptr<Kernels> make_host_kernels() { return std::make_unique<HostKernels>(); }

std::unique_ptr<Kernels> make_kernels(at::Device device) {
  if (device.is_cpu()) return make_host_kernels();
#ifdef OPTIMUS_CUDA
  // The CUDA kernels are compiled for Ampere and later.
  if (device.is_cuda() && at::cuda::getDeviceProperties(device.index())->major >= 8)
    return make_cuda_kernels();
#endif
  return make_plain_kernels();
}

void Kernels::norm_backward_with_sums(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                                      const at::Tensor& weight, const at::Tensor& statistics,
                                      const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_gradient,
                                      at::Tensor& bias_gradient, StreamSums& sums) const {
  if (sums.residual.defined()) add_rows(residual, sums.residual);  // first, because dx may alias the residual
  norm_backward(options, dy, x, weight, statistics, residual, dx, weight_gradient, bias_gradient);
  if (sums.output.defined()) add_rows(dx, sums.output);
}

at::Tensor step_scalars_after_gate(at::Device device, double learning_rate, std::int64_t step, double factor,
                                   const GateOptions& options) {
  at::Tensor step_scalars = at::zeros({kNumStepScalars}, at::kDouble);
  auto* values = step_scalars.data_ptr<double>();
  step_scalar(values, StepScalar::learning_rate) = learning_rate;
  step_scalar(values, StepScalar::num_targets) = 1 / factor;
  step_scalar(values, StepScalar::loss_scale) = 1;
  step_scalar(values, StepScalar::num_updates) = static_cast<double>(step - 1);
  compute_gate(options, values);
  return step_scalars.to(device);
}

}  // namespace optimus
