// PlanImprover: stores the best plan found while plans outside the grid are tried. A plan replaces the best
// one only if it is valid, fits into memory, and has a better objective according to the simulator.
#pragma once

#include "search/evaluate.h"

namespace optimus {

struct ImprovedPlan {
  Plan plan;
  double seconds = 0, objective = 0;
  PeakMemory peak_memory;
};

class PlanImprover {
 public:
  // The referenced objects must outlive this object. Without an initial plan, the first plan that fits
  // becomes the best.
  PlanImprover(const Demand& demand, const ClusterView& cluster_view)
      : demand_(demand), cluster_view_(cluster_view) {}

  const ImprovedPlan& best() const { return best_plan_; }
  bool has_plan() const { return !best_plan_.plan.pipelines.empty(); }
  void start_with(ImprovedPlan plan) { best_plan_ = std::move(plan); }

  // Whether the plan is valid and fits into memory.
  bool fits(const Plan& plan) const;
  // Evaluates the plan and returns whether it is the new best plan.
  bool consider(const Plan& plan);

 private:
  const Demand& demand_;
  const ClusterView& cluster_view_;
  ImprovedPlan best_plan_;
};

}  // namespace optimus
