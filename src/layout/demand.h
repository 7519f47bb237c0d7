// The memory that each rank needs to move a tensor. Ranks whose demands are equal for all tensors form one
// class, so that ordering the waves of 100,000 ranks involves only a few hundred classes. Internal to
// src/layout.
#pragma once

#include <vector>

#include "layout/banker.h"
#include "layout/change.h"

namespace optimus {

// The demands of all moves. Boxes that stay in place are counted neither as allocated nor as freed.
struct MemoryDemands {
  int num_classes = 0;
  std::vector<std::vector<MemoryDemand>> of_kind;  // [kind]: the demands of moving one tensor of the kind
  Bytes lower_bound, full_fetch_bytes;             // for the whole change, as in TransferPlan
};

MemoryDemands demands_of(const LayoutChange& change);

}  // namespace optimus
