// The best plan so far, while plans beyond the grid are tried: each counts only where it is valid, fits, and the simulator finds it
// better.
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
  // What it refers to must outlive it. Without a plan to begin with, the first that fits is the best.
  Improver(const Demand& demand, const Ground& ground) : demand_(demand), ground_(ground) {}

  const Improved& best() const { return best_; }
  bool has_plan() const { return !best_.plan.pipelines.empty(); }
  void start_with(Improved plan) { best_ = std::move(plan); }

  // Whether it is valid and its memory suffices.
  bool fits(const Plan& plan) const;
  // Whether it is now the best.
  bool consider(const Plan& plan);

 private:
  const Demand& demand_;
  const Ground& ground_;
  Improved best_;
};

}  // namespace optimus
