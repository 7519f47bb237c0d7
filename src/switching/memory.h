// Reports properties of the local device and checks whether a plan fits into its memory before anything is
// allocated.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "plan/plan.h"
#include "switching/plan_switch.h"

namespace optimus {

// Returns the memory that the plan needs on this rank: the state, the activation arena, and the additional
// memory of custom blocks and libraries.
Bytes predicted_memory(const Plan& plan, const ModelSpec& model, int rank, at::Device device);
// Free memory of the device; nullopt if it is unknown.
std::optional<Bytes> free_memory(at::Device device);
// `in_use` is the resident memory of this process on CPUs, and all memory in use on the device on GPUs.
// `limit` is the value to which it could currently grow.
struct ResidentMemory {
  Bytes in_use{}, limit{};
};
std::optional<ResidentMemory> resident_memory(at::Device device);
// The total memory of the device.
Bytes total_memory(at::Device device);
// PCI address of a GPU, for example "0000:3b:00.0"; nullopt for other devices.
std::optional<std::string> bus_id(at::Device device);
// Returns the memory that each of `num_ranks` ranks may use temporarily, which is half of its share of the
// free memory. The other half is left to other processes.
Bytes spare_memory(at::Device device, int num_ranks);
// Returns why the plan does not fit into the free memory plus the `replaced` bytes of the state that it
// replaces. The text contains both sizes and a suggestion. Returns nullopt if the plan fits or the free
// memory is unknown.
std::optional<std::string> memory_shortage(const Plan& plan, const ModelSpec& model, at::Device device,
                                           Bytes replaced = Bytes(0));
// Returns the reason if the new plan does not fit, or if the switch needs more memory than the larger of the
// two plans. Returns nullopt otherwise.
std::optional<std::string> memory_shortage(const PlanSwitch& next, const ModelSpec& model, int rank,
                                           at::Device device);
// Throws UserError with the reason if the user's plan does not fit.
void check_fits(const Plan& plan, const ModelSpec& model, at::Device device, Bytes replaced = Bytes(0));

}  // namespace optimus
