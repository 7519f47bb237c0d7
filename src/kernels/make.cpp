// Which kernels a device gets.
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

}  // namespace optimus
