// What of a change's state can be sent before training stands still (precopy.h): worked out by both ends alike, from the change alone.
#pragma once

#include <vector>

#include "switching/state_views.h"

namespace optimus {

// Rows of what moves.
struct EarlyRows {
  const RankShare::Operation* of = nullptr;
  Box box;
};
// What of a rank's operations in the first waves can be sent early, in their order.
std::vector<EarlyRows> early_rows(const PlanChange& change, const RankShare& share, std::size_t num_waves);
// How many bytes less a rank receives in the pause when all of it is.
Bytes saved_by_precopy(const PlanChange& change, const RankShare& share, std::size_t num_waves);
// Whether this change's state can be sent early at all.
bool can_precopy(const PlanChange& change, at::Device device);

}  // namespace optimus
