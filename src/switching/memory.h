// Properties of the local device, and whether a plan fits into its memory, before anything is allocated.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

#include "plan/plan.h"
#include "switching/plan_switch.h"

namespace optimus {

// Memory of the program's buffers: the state, the activation arena, and the additional memory of custom
// blocks.
Bytes predicted_memory(const Plan& plan, const ModelSpec& model, int rank, at::Device device);
// Free memory of the device; nullopt if it is unknown.
std::optional<Bytes> free_memory(at::Device device);
// `in_use`: on CPUs the resident memory of this process, on GPUs all memory in use on the device. `limit` is
// the value to which it could grow at present.
struct ResidentMemory {
  Bytes in_use{}, limit{};
};
std::optional<ResidentMemory> resident_memory(at::Device device);
// The total memory of the device.
Bytes total_memory(at::Device device);
// PCI address of a GPU: "0000:3b:00.0".
std::optional<std::string> bus_id(at::Device device);
// Memory that each of `num_ranks` ranks may use temporarily: half of its share of the free memory, so that
// some is left for other processes.
Bytes spare_memory(at::Device device, int num_ranks);
// Returns the reason why the plan does not fit into the free memory plus the `replaced` bytes of the state
// that it replaces: both figures and a suggestion. nullopt if it fits, or if the free memory is unknown.
std::optional<std::string> memory_shortage(const Plan& plan, const ModelSpec& model, at::Device device,
                                           Bytes replaced = Bytes(0));
// A switch may need no more memory than the larger of both plans. Returns the reason if it needs more, or if
// the new plan does not fit.
std::optional<std::string> memory_shortage(const PlanSwitch& next, const ModelSpec& model, int rank,
                                           at::Device device);
// Refuses the user's plan: throws the reason as a UserError.
void check_fits(const Plan& plan, const ModelSpec& model, at::Device device, Bytes replaced = Bytes(0));

}  // namespace optimus
