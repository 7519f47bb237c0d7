// Plans with several pipelines: one additional pipeline of another depth on devices that a grid leaves idle;
// one pipeline for each part of a heterogeneous cluster, with a share of the batch proportional to its speed;
// and plans that exclude slow devices.
#pragma once

#include "search/grid.h"

namespace optimus {

// Plans that are worth a simulation; memory is not checked yet.
std::vector<Plan> multi_pipeline_plans(const Demand& demand, const ClusterView& cluster_view,
                                       BoundModel& bound_model, const GridResult& grid);

}  // namespace optimus
