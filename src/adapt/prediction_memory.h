// How far predictions can be trusted: what plans took of what the cost model said of them.
//
// The model errs in common for plans of one kind (which axes they have, in which order their stages compute, whether state is cut), because
// it errs about the same channels, kernels and gaps: a kind that has run is believed by what it took then, and so is, with a small doubt, one
// of the same axes whose schedule is another or whose state is cut otherwise; any other one as much as the model was right about the plan
// that runs.
// Pure; one thread.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "adapt/condition.h"
#include "plan/plan.h"

namespace optimus {

class PredictionMemory {
 public:
  struct Kind {
    std::string axes;
    std::optional<Schedule> schedule;  // of stages, where there are several
    bool has_shards = false;           // state is cut: other collectives
    auto operator<=>(const Kind&) const = default;
  };
  // The plan runs, and takes so much of what was predicted for the machines as they are; quiet: as they usually are.
  void record(const Plan& plan, double predicted, double measured, bool is_quiet);
  // Such a condition has made its steps longer by so much of what was predicted that it would.
  void record_added(Cause cause, double ratio);
  double added(Cause cause) const;
  bool knows_quiet(const Plan& plan) const;  // its kind, where nothing was slow
  struct Trust {
    double factor = 1;  // seconds, of those predicted
    double doubt = 0;   // of its logarithm, beside the prediction's own
  };
  // now: the plan that runs, of which saw() was told.
  Trust trust_in(const Plan& plan, const Plan& now) const;

 private:
  struct Seen {
    double ratio = 1;
    bool is_quiet = false;
  };
  std::map<Kind, Seen> ratios_;
  std::map<Cause, double> added_;
};

}  // namespace optimus
