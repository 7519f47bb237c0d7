// See device.h.
#include "engine/device.h"

#include <ATen/Parallel.h>
#ifdef OPTIMUS_CUDA
#include <ATen/cuda/CUDAContext.h>
#endif
#include <sched.h>

#include "base/error.h"
#include "cluster/standard.h"

namespace optimus {

int num_cuda_devices() {
#ifdef OPTIMUS_CUDA
  return static_cast<int>(at::cuda::device_count());
#else
  return 0;
#endif
}

bool has_cuda() { return num_cuda_devices() > 0; }

std::string device_name(at::Device device) {
#ifdef OPTIMUS_CUDA
  if (device.is_cuda()) return at::cuda::getDeviceProperties(device.index())->name;
#endif
  (void)device;
  return "";
}

at::Device parse_device(const std::string& name) {
  if (name == "cpu") return at::Device(at::kCPU);
  if (name != "cuda" && !name.starts_with("cuda:"))
    throw UserError("--device: '{}' is not one of cpu, cuda, cuda:N", name);
  int index = 0;
  if (name.size() > 5) {
    const std::string digits = name.substr(5);
    if (digits.empty() || digits.size() > 4 || digits.find_first_not_of("0123456789") != std::string::npos)
      throw UserError("--device: '{}' is not one of cpu, cuda, cuda:N", name);
    index = std::stoi(digits);
  }
  if (index >= num_cuda_devices())
    throw UserError("--device {}: this machine has {} CUDA devices that PyTorch can use", name,
                    num_cuda_devices());
  return at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index));
}

ElementTypes types_of(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return {at::kDouble, at::kDouble};
    case Precision::fp32:
      return {at::kFloat, at::kFloat};
    case Precision::bf16:
    case Precision::fp8:  // with fp8, the type outside of GEMMs
      return {at::kBFloat16, at::kFloat};
    case Precision::fp16:
      return {at::kHalf, at::kFloat};
  }
  return {};
}

int num_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

int set_num_threads(int count) {
  if (count <= 0) count = num_cores();
  at::set_num_threads(count);
  return count;
}

std::string type_name(at::Device device) {
  const std::string vendor_name = device_name(device);
  if (const std::optional<DeviceType> type = find_type_by_vendor_name(vendor_name)) return type->name;
  return vendor_name.empty() ? "cpu" : vendor_name;
}

at::Device choose_device(const std::string& name) {
  if (!name.empty()) return parse_device(name);
  return has_cuda() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

std::vector<std::string> devices_of_ranks(const std::string& name, int num_ranks) {
  const at::Device device = choose_device(name);
  const bool is_single_device = device.is_cpu() || name.find(':') != std::string::npos;
  std::vector<std::string> result;
  for (int rank = 0; rank < num_ranks; ++rank)
    result.push_back(is_single_device ? device.str()
                                      : fmt::format("cuda:{}", rank % std::max(1, num_cuda_devices())));
  return result;
}

}  // namespace optimus
