// Where an engine computes and in which element types.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "plan/plan.h"

namespace optimus {

// "cpu", "cuda", "cuda:1". Throws UserError when this build or machine has no such device.
at::Device parse_device(const std::string& name);
bool has_cuda();
int num_cuda_devices();
// As its maker calls it: "NVIDIA H200"; empty for a processor.
std::string device_name(at::Device device);

// The types of one precision: of weights and activations, and of what is summed and updated (gradients, masters, moments,
// statistics).
struct ElementTypes {
  at::ScalarType element = at::kFloat, wide = at::kFloat;
};
ElementTypes types_of(Precision precision);

// That this process may run on.
int num_cores();
// Threads that kernels on the processor use; 0: as many as there are cores for this process. Returns what was set.
int set_num_threads(int count);

// As hardware profiles call it: cpu, h200; a maker's own name where we know no other.
std::string type_name(at::Device device);
at::Device choose_device(const std::string& name);  // empty: CUDA where there is one

// Where ranks compute: on the device of that name; where that is just "cuda", on one after the other. Empty: as choose_device says.
std::vector<std::string> devices_of_ranks(const std::string& device, int num_ranks);

}  // namespace optimus
