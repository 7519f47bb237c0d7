// Plans whose layers differ in more than the recompute mode. They have higher ZeRO stages only in the layers
// where memory requires them, a different tensor-parallel size for embedding and head than for layers, or
// groups of layers that are recomputed from one saved input.
#pragma once

#include "search/grid.h"
#include "search/improve.h"

namespace optimus {

// Starting from the best plan, tries lower ZeRO stages where memory is left, and a different tensor-parallel
// size for embedding and head.
void mix_layers(PlanImprover& improver, const Demand& demand, const ClusterView& cluster_view);

// Starting from candidates that are faster than the best plan but exceed memory (from all such candidates
// if no plan fits), shards as few additional layers as needed, or recomputes layers in groups.
void fit_by_sharding_or_grouping(PlanImprover& improver, const Demand& demand, BoundModel& bound_model,
                                 const GridResult& grid);

}  // namespace optimus
