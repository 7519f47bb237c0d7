// Determines which state of a plan change can be sent before training pauses (precopy.h). Sender and receiver
// compute the same result from the PlanChange alone.
#pragma once

#include <vector>

#include "switching/state_views.h"

namespace optimus {

// Rows of an operation's box.
struct PrecopyRows {
  const RankShare::Operation* of = nullptr;
  Box box;
};
// Returns the rows that can be sent early from a rank's operations in the first `num_waves` waves, in the
// order of the operations.
std::vector<PrecopyRows> precopy_rows(const PlanChange& change, const RankShare& share,
                                      std::size_t num_waves);
// Returns how many fewer bytes a rank receives during the pause if all of these rows are sent early.
Bytes saved_by_precopy(const PlanChange& change, const RankShare& share, std::size_t num_waves);
// Whether any state of this change can be sent early.
bool can_precopy(const PlanChange& change, at::Device device);

}  // namespace optimus
