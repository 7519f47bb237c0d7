// Demand: what moving a tensor costs the memory of each rank. Ranks that have the same demands throughout are
// one class, so that ordering the waves of 100,000 ranks is a matter of a few hundred classes. Internal to
// src/layout.
#pragma once

#include <vector>

#include "layout/banker.h"
#include "layout/change.h"

namespace optimus {

// Boxes that are kept count neither as allocated nor as freed.
struct MemoryDemands {
  int num_classes = 0;
  std::vector<std::vector<MemoryDemand>> of_kind;  // for one tensor of the kind
  Bytes lower_bound, naive;                        // of the whole change, as in TransferPlan
};

MemoryDemands demands_of(const LayoutChange& change);

}  // namespace optimus
