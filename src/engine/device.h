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
// Name given by the vendor: "NVIDIA H200"; empty for a CPU.
std::string device_name(at::Device device);

// The element types of one precision: `element` for weights and activations, `wide` for sums and updated
// state (gradients, masters, moments, statistics).
struct ElementTypes {
  at::ScalarType element = at::kFloat, wide = at::kFloat;
};
ElementTypes types_of(Precision precision);

// Number of CPU cores that this process may use.
int num_cores();
// Sets the number of threads for CPU kernels; 0: the number of cores available to this process. Returns the
// number set.
int set_num_threads(int count);

// Name used in hardware profiles: cpu, h200; the vendor's name for unknown devices.
std::string type_name(at::Device device);
at::Device choose_device(const std::string& name);  // empty: CUDA if available

// The device of each rank: the named device; for plain "cuda", the GPUs in round-robin order. Empty: as in
// choose_device.
std::vector<std::string> devices_of_ranks(const std::string& device, int num_ranks);

}  // namespace optimus
