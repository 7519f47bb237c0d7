// The plan of a candidate, with as little recomputation as memory allows if the candidate is fitted.
#pragma once

#include "search/evaluate.h"

namespace optimus {

// The plan of a candidate, and its memory. For a fitted candidate, candidate.memory_margin is the smallest
// margin with which the plan fits.
struct FittedPlan {
  Candidate candidate;
  Plan plan;
  PeakMemory peak_memory;
};
FittedPlan fit_memory_margin(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
                             Candidate candidate);

// The plan that the grid search uses for a candidate.
Plan grid_plan(const Demand& demand, BoundModel& bound_model, const Candidate& candidate);

}  // namespace optimus
