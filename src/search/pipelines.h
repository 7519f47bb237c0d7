// Plans with several pipelines: an additional pipeline of another depth on devices that the grid leaves
// idle; or one pipeline for each part of a heterogeneous cluster, with a share of the batch proportional to
// its speed. Also plans that exclude slow devices.
#pragma once

#include "search/grid.h"

namespace optimus {

// Plans that are worth a simulation. Their memory has not been checked.
std::vector<Plan> multi_pipeline_plans(const Demand& demand, const ClusterView& cluster_view,
                                       BoundModel& bound_model, const GridResult& grid);

}  // namespace optimus
