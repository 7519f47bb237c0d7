// Devices and element types that an engine uses.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "plan/plan.h"

namespace optimus {

// Parses "cpu", "cuda" or "cuda:1". Throws UserError if this build or machine has no such device.
at::Device parse_device(const std::string& name);
bool has_cuda();
int num_cuda_devices();
// The vendor's name of the device, such as "NVIDIA H200"; empty for a CPU.
std::string device_name(at::Device device);

// The element types of one precision: `element` for weights and activations, `wide` for sums and updated
// state (gradients, masters, moments, statistics).
struct ElementTypes {
  at::ScalarType element = at::kFloat, wide = at::kFloat;
};
ElementTypes types_of(Precision precision);

// Number of CPU cores that this process may use.
int num_cores();
// Sets the number of threads of CPU kernels and returns it. `count` 0 means as many as num_cores().
int set_num_threads(int count);

// The name of the device's type in hardware profiles, such as "cpu" or "h200"; the vendor's name if it is
// unknown.
std::string type_name(at::Device device);
// If `name` is empty: CUDA if available, otherwise the CPU.
at::Device choose_device(const std::string& name);

// Returns the device name of each rank: the named device; for plain "cuda", the GPUs in round-robin order.
// An empty name is resolved as in choose_device.
std::vector<std::string> devices_of_ranks(const std::string& device, int num_ranks);

}  // namespace optimus
