// Implements prediction_memory.h.
#include "adapt/prediction_memory.h"

#include <algorithm>
#include <cmath>

namespace optimus {
namespace {

// The minimum uncertainty (standard deviation of the logarithm of the step time) for a kind of plan that has
// not run; e^0.4 is 1.5. In lab tests, data-parallel plans were up to 1.9 times slower than predicted from
// measurements of pipelines.
constexpr double kMinUncertainty = 0.4;
// The uncertainty if the kind of plan has run only with different sharding, so that its collectives have not
// been measured.
constexpr double kShardsUncertainty = 0.1;
// The uncertainty if the kind of plan has run only with another schedule. In lab tests, the step time of the
// zero-bubble schedule was predicted to be 0.83 times that of 1f1b and measured to be 0.86 to 1.2 times.
constexpr double kScheduleUncertainty = 0.2;

PredictionMemory::Kind kind_of(const Plan& plan) {
  bool has_stages = false, has_tp = false, has_cp = false, has_dp = plan.pipelines.size() > 1,
       has_shards = false;
  for (const Pipeline& pipeline : plan.pipelines) {
    has_stages |= pipeline.stages.size() > 1;
    for (const Stage& stage : pipeline.stages) {
      const LayerStrategy& strategy = stage.chunks.front().runs.front().strategy;
      has_tp |= strategy.tp > 1, has_cp |= strategy.cp > 1;
      has_dp |= data_parallel(stage, strategy) > 1, has_shards |= strategy.zero > 0;
    }
  }
  std::string axes;
  for (const auto& [has_axis, letter] :
       {std::pair(has_stages, 'p'), std::pair(has_tp, 't'), std::pair(has_cp, 'c'), std::pair(has_dp, 'd')})
    if (has_axis) axes += letter;
  return {axes, has_stages ? std::optional(plan.schedule) : std::nullopt, has_shards};
}

// The uncertainty of a prediction that is corrected by the measured ratio of another kind of plan with the
// same axes.
double uncertainty_between(const PredictionMemory::Kind& remembered,
                           const PredictionMemory::Kind& requested) {
  return std::hypot(remembered.has_shards == requested.has_shards ? 0 : kShardsUncertainty,
                    remembered.schedule == requested.schedule ? 0 : kScheduleUncertainty);
}

}  // namespace

void PredictionMemory::record(const Plan& plan, double predicted, double measured, bool is_quiet) {
  if (predicted > 0 && measured > 0) ratios_[kind_of(plan)] = {measured / predicted, is_quiet};
}

void PredictionMemory::record_slowdown_ratio(Cause cause, double ratio) {
  constexpr double kMaxValue = 4;  // larger ratios have another cause
  slowdown_ratios_[cause] = std::clamp(ratio, 1 / kMaxValue, kMaxValue);
}

double PredictionMemory::slowdown_ratio(Cause cause) const {
  const auto it = slowdown_ratios_.find(cause);
  return it == slowdown_ratios_.end() ? 1 : it->second;
}

bool PredictionMemory::has_run_undisturbed(const Plan& plan) const {
  const auto it = ratios_.find(kind_of(plan));
  return it != ratios_.end() && it->second.is_quiet;
}

PredictionMemory::Trust PredictionMemory::trust_in(const Plan& plan, const Plan& current_plan) const {
  const Kind kind = kind_of(plan);
  std::optional<Trust> nearest;
  for (const auto& [known, measured] : ratios_) {
    const double uncertainty = uncertainty_between(known, kind);
    if (known.axes == kind.axes && (!nearest || uncertainty < nearest->uncertainty))
      nearest = Trust{measured.ratio, uncertainty};
  }
  if (nearest) return *nearest;
  const auto present = ratios_.find(kind_of(current_plan));
  if (present == ratios_.end()) return {};
  return {present->second.ratio, std::max(kMinUncertainty, std::abs(std::log(present->second.ratio)))};
}

}  // namespace optimus
