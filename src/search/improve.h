// Improver: keeps the best plan while plans outside the grid are tried. A plan replaces it only if it is
// valid, fits into memory, and is better according to the simulator.
#pragma once

#include "search/search.h"

namespace optimus {

struct Improved {
  Plan plan;
  double seconds = 0, objective = 0;
  Fill fill;
};

class Improver {
 public:
  // The references must outlive this object. Without an initial plan, the first plan that fits becomes the
  // best.
  Improver(const Demand& demand, const Ground& ground) : demand_(demand), ground_(ground) {}

  const Improved& best() const { return best_; }
  bool has_plan() const { return !best_.plan.pipelines.empty(); }
  void start_with(Improved plan) { best_ = std::move(plan); }

  // Whether the plan is valid and fits into memory.
  bool fits(const Plan& plan) const;
  // Returns whether the plan is the new best.
  bool consider(const Plan& plan);

 private:
  const Demand& demand_;
  const Ground& ground_;
  Improved best_;
};

}  // namespace optimus
