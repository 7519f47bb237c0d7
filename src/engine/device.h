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
// Returns the vendor's name of the device, such as "NVIDIA H200". Empty for a CPU.
std::string device_name(at::Device device);

// The element types of one precision. `element` is used for weights and activations, `wide` for sums and
// updated state (gradients, masters, moments, statistics).
struct ElementTypes {
  at::ScalarType element = at::kFloat, wide = at::kFloat;
};
ElementTypes types_of(Precision precision);

// Returns the number of CPU cores that this process may use.
int num_cores();
// Sets the number of threads of CPU kernels and returns it. If `count` is 0, uses num_cores() threads.
int set_num_threads(int count);

// Returns the name of the device's type in hardware profiles, such as "cpu" or "h200". For an unknown type,
// returns the vendor's name of the device.
std::string type_name(at::Device device);
// Returns the device named `name`. If `name` is empty, returns CUDA if available, otherwise the CPU.
at::Device choose_device(const std::string& name);

// Returns the device name of each rank. Ranks use the named device; plain "cuda" assigns GPUs to ranks in
// round-robin order. An empty name is resolved as in choose_device.
std::vector<std::string> devices_of_ranks(const std::string& device, int num_ranks);

}  // namespace optimus
