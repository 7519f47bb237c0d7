// Which kernels a device gets.
#include "kernels/host.h"
#include "kernels/kernels.h"

namespace optimus {

std::unique_ptr<Kernels> make_host_kernels() { return std::make_unique<HostKernels>(); }

std::unique_ptr<Kernels> make_kernels(at::Device device) {
  return device.is_cpu() ? make_host_kernels() : make_plain_kernels();
}

}  // namespace optimus
