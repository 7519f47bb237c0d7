// Refinement beyond the grid. Starts from the best candidates and tries uneven stages and chunks,
// recomputation of only as many layers as memory requires, different placements of stages, layers with
// different strategies (search/mixed.h), and several pipelines (search/pipelines.h). A change is accepted
// only if the simulator finds it better.
#pragma once

#include "search/grid.h"
#include "search/improve.h"

namespace optimus {

// Returns the best plan found, which is the best candidate of the grid if nothing is better. The plan has no
// pipelines if neither the grid search nor the refinement found one that fits. With `is_uniform`, all layers
// have one strategy and the plan has one pipeline, as other trainers require.
ImprovedPlan refine(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
                    const GridResult& grid, bool is_uniform);

}  // namespace optimus
