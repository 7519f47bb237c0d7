// Plans with several pipelines: either an additional pipeline of a different depth on devices that the grid
// leaves idle, or one pipeline for each part of a heterogeneous cluster, with a share of the batch
// proportional to the speed of that part. Also plans that exclude slow devices.
#pragma once

#include "search/grid.h"

namespace optimus {

// Returns plans that are worth simulating. Their memory has not been checked.
std::vector<Plan> multi_pipeline_plans(const Demand& demand, const ClusterView& cluster_view,
                                       BoundModel& bound_model, const GridResult& grid);

}  // namespace optimus
