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

}  // namespace optimus
