// See fitted_plan.h.
#include "search/fitted_plan.h"

namespace optimus {

Plan grid_plan(const Demand& demand, BoundModel& bound_model, const Candidate& c) {
  return c.is_fitted ? plan_of(demand, c, bound_model.layers_of(c)) : plan_of(demand, c);
}

FittedPlan fit_memory_margin(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
                             Candidate c) {
  FittedPlan result;
  for (const int memory_margin : {2, 5, 10, 20, 40, 80}) {
    if (c.is_fitted) c.memory_margin = memory_margin;
    result = {c, grid_plan(demand, bound_model, c), {}};
    result.peak_memory = peak_memory_of(demand, cluster_view, result.plan);
    if (result.peak_memory.fits() || !c.is_fitted) break;
  }
  return result;
}

}  // namespace optimus
