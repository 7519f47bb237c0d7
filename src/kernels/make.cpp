// Which kernels a device gets; numbers for those who call kernels without an engine.
#include <ATen/ops/zeros.h>

#include "kernels/host.h"
#include "kernels/kernels.h"

namespace optimus {

std::unique_ptr<Kernels> make_host_kernels() { return std::make_unique<HostKernels>(); }

std::unique_ptr<Kernels> make_kernels(at::Device device) {
  if (device.is_cpu()) return make_host_kernels();
#ifdef OPTIMUS_CUDA
  if (device.is_cuda()) return make_cuda_kernels();
#endif
  return make_plain_kernels();
}

at::Tensor numbers_behind_gate(at::Device device, double learning_rate, std::int64_t step, double factor,
                               const GateOptions& options) {
  at::Tensor numbers = at::zeros({kNumStepNumbers}, at::kDouble);
  auto* values = numbers.data_ptr<double>();
  number(values, StepNumber::learning_rate) = learning_rate;
  number(values, StepNumber::num_counted) = 1 / factor;
  number(values, StepNumber::loss_scale) = 1;
  number(values, StepNumber::num_updates) = static_cast<double>(step - 1);
  work_out_gate(options, values);
  return numbers.to(device);
}

}  // namespace optimus
