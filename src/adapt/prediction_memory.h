// PredictionMemory: measured over predicted step times of plans that have run, by kind of plan.
//
// Plans of one kind have the same parallel axes, the same schedule and the same sharding. The cost model has
// a common error for them, because they use the same channels and kernels. So a prediction is corrected by
// the ratio of its kind. A kind with the same axes and another schedule or sharding is corrected in the same
// way, with a small doubt. Any other kind is corrected by the ratio of the present plan, with a large doubt.
// Pure; copyable; one thread.
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
    std::optional<Schedule> schedule;  // only with several stages
    bool has_shards = false;           // sharded state uses other collectives
    auto operator<=>(const Kind&) const = default;
  };
  // The present plan's step time in seconds, predicted for the present conditions, and measured. is_quiet: no
  // condition concerns the plan.
  void record(const Plan& plan, double predicted, double measured, bool is_quiet);
  // A condition of this cause has made steps longer by this multiple of the predicted increase.
  void record_added(Cause cause, double ratio);
  double added(Cause cause) const;
  bool knows_quiet(const Plan& plan) const;  // whether its kind has run without conditions
  struct Trust {
    double factor = 1;       // expected over predicted seconds
    double uncertainty = 0;  // standard deviation of its logarithm, in addition to the prediction's own
  };
  // now: the present plan, of which record() was called.
  Trust trust_in(const Plan& plan, const Plan& present_plan) const;

 private:
  struct Measured {
    double ratio = 1;
    bool is_quiet = false;
  };
  std::map<Kind, Measured> ratios_;
  std::map<Cause, double> added_;
};

}  // namespace optimus
