// PredictionMemory: stores the ratio of measured to predicted step time for each kind of plan that has run.
//
// Plans of one kind have the same parallel axes, the same schedule and the same sharding. The cost model has
// a similar error for all of them, because they use the same channels and kernels. So each prediction is
// multiplied by the ratio of its kind. If only a kind with the same axes and a different schedule or sharding
// has run, its ratio is used with a small additional uncertainty. Otherwise the ratio of the current plan is
// used with a large additional uncertainty. Pure; copyable; one thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "policy/condition.h"

namespace optimus {

class PredictionMemory {
 public:
  struct Kind {
    std::string axes;
    std::optional<Schedule> schedule;  // empty if there is only one stage
    bool has_shards = false;           // plans with sharded state use other collectives
    auto operator<=>(const Kind&) const = default;
  };
  // Records the predicted and the measured step time of the current plan under the current conditions, in
  // seconds. `is_quiet` means that no condition affects the plan.
  void record(const Plan& plan, double predicted, double measured, bool is_quiet);
  // Records that a condition with this cause has lengthened steps by `ratio` times the predicted increase.
  void record_slowdown_ratio(Cause cause, double ratio);
  double slowdown_ratio(Cause cause) const;
  bool has_run_undisturbed(const Plan& plan) const;  // whether its kind has run without conditions
  struct Trust {
    double factor = 1;       // expected seconds divided by predicted seconds
    double uncertainty = 0;  // standard deviation of its logarithm, in addition to the prediction's own
  };
  // record() must have been called for `current_plan`.
  Trust trust_in(const Plan& plan, const Plan& current_plan) const;

 private:
  struct KindRatio {
    double ratio = 1;
    bool is_quiet = false;
  };
  std::map<Kind, KindRatio> ratios_;
  std::map<Cause, double> slowdown_ratios_;
};

}  // namespace optimus
