// What device this is, and whether a plan fits it, before anything is allocated.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "plan/plan.h"
#include "switching/plan_switch.h"

namespace optimus {

// What the program's buffers take: the state, the arena of activations, and what custom blocks take beside it.
Bytes predicted_memory(const Plan& plan, const ModelSpec& model, int rank, at::Device device);
// What the device has left for us; nothing when it cannot be known.
std::optional<Bytes> free_memory(at::Device device);
// What this process holds of a processor's memory, or all that is taken of a card's; and the most that it could become as things are.
struct HeldMemory {
  Bytes held{}, most{};
};
std::optional<HeldMemory> held_memory(at::Device device);
// All that it has.
Bytes total_memory(at::Device device);
// Where a GPU sits: "0000:3b:00.0".
std::optional<std::string> bus_id(at::Device device);
// What each of so many ranks may use of it for a while: half, so that others are not crowded out.
Bytes spare_memory(at::Device device, int num_ranks);
// Throws UserError with both figures and what would help.
void refuse_too_large(const Plan& plan, const ModelSpec& model, at::Device device, Bytes held = Bytes(0));
// A switch needs no more than either plan does: throws UserError where it would, or where the new plan does not fit.
void refuse_too_large(const PlanSwitch& next, const ModelSpec& model, int rank, at::Device device);

}  // namespace optimus
