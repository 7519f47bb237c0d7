// Implements option_pricing.h.
#include "adapt/option_pricing.h"

#include <algorithm>
#include <cmath>

#include "adapt/plan_conditions.h"
#include "plan/validate.h"

namespace optimus {
namespace {

// The cause that all conditions have in common. Returns nullopt if the causes differ or there are no
// conditions.
std::optional<Cause> only_cause(const std::vector<Condition>& conditions) {
  if (conditions.empty()) return std::nullopt;
  for (const Condition& condition : conditions)
    if (condition.cause != conditions.front().cause) return std::nullopt;
  return conditions.front().cause;
}

// Converts the device indices in a plan from the planner, which skips the dropped devices, to ranks.
// `dropped` must be sorted.
Plan with_ranks(Plan plan, const std::vector<int>& dropped) {
  if (dropped.empty()) return plan;
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices)
        for (const int dropped_device : dropped)
          if (dropped_device <= device) ++device;
  return plan;
}

ResponseLimits limits_of(const Question& question, const AdaptationContext& context, const Cluster& cluster) {
  ResponseLimits limits = context.limits;
  limits.known_plans.insert(limits.known_plans.end(), question.earlier_plans.begin(),
                            question.earlier_plans.end());
  if (context.undone_steps)
    if (const auto alternative = with_other_redundancy(question.plan, node_of_each_device(cluster)))
      limits.known_plans.push_back(*alternative);
  return limits;
}

// The relative uncertainty of a step time if conditions cause the fraction `part` of it.
double uncertainty_of_conditions(const Question& question, const Plan& plan, double part,
                                 const Cluster& cluster) {
  double maximum = 0;
  for (const Condition& condition : conditions_of_plan(question.conditions, plan, cluster))
    if (const auto found = question.spreads.find({condition.cause, condition.location});
        found != question.spreads.end())
      // This is the relative uncertainty of the time that the condition adds.
      maximum = std::max(maximum, found->second * condition.factor / (condition.factor - 1));
  return part * maximum;
}

std::optional<double> measured_step(const Question& question, const Plan& plan, const std::string& conditions,
                                    const Cluster& cluster) {
  const auto it = question.step_times.find(measurement_key(plan, conditions, cluster));
  return it == question.step_times.end() ? std::nullopt : std::optional(it->second);
}

void apply_corrections(PlannedOption& planned_option, const Question& question,
                       const PredictionMemory& memory, const Cluster& cluster) {
  const std::optional<Cause> cause = only_cause(question.conditions);
  const double condition_ratio = cause ? memory.slowdown_ratio(*cause) : 1;
  const PredictionMemory::Trust trust = memory.trust_in(planned_option.plan, question.plan);
  const double added =
      std::max(0.0, planned_option.option.step_seconds - planned_option.option.usual_seconds) * trust.factor;
  planned_option.option.usual_seconds = measured_step(question, planned_option.plan, "", cluster)
                                            .value_or(planned_option.option.usual_seconds * trust.factor);
  planned_option.option.step_seconds = planned_option.option.usual_seconds + added * condition_ratio;
  const double condition_uncertainty = uncertainty_of_conditions(
      question, planned_option.plan, added * condition_ratio / planned_option.option.step_seconds, cluster);
  planned_option.option.uncertainty = std::hypot(
      std::hypot(planned_option.option.uncertainty, condition_uncertainty, question.totals.uncertainty()),
      question.uncertainty, trust.uncertainty);
}

void use_measured_step(PlannedOption& planned_option, const Question& question, const Cluster& cluster) {
  auto measured_seconds =
      measured_step(question, planned_option.plan,
                    condition_key(question.conditions, planned_option.plan, cluster), cluster);
  if (std::find(question.earlier_plans.begin(), question.earlier_plans.end(), planned_option.plan) !=
      question.earlier_plans.end()) {
    planned_option.option.response = Response::resume;
    if (question.seconds_before) measured_seconds = question.seconds_before;
  }
  if (measured_seconds)
    planned_option.option.step_seconds = *measured_seconds, planned_option.option.uncertainty = 0.01,
    planned_option.option.is_measured = true;
}

}  // namespace

Feasible<std::vector<PlannedOption>> planned_options(const Question& question,
                                                     const AdaptationContext& context,
                                                     const Cluster& cluster) {
  const Cluster calibrated(question.machines);
  const Demand usual_demand = context.demand(calibrated, question.plan);
  Constants constants = with_rates(usual_demand.constants, question.rates);
  constants.ring_residual *= question.ring_factor;
  Feasible<std::vector<PlannedOption>> found =
      responses(demand_on(usual_demand, calibrated, constants), question.plan, question.conditions,
                context.costs, limits_of(question, context, cluster));
  if (!found) return found;
  std::vector<PlannedOption>& options = *found;
  for (PlannedOption& planned_option : options) {
    planned_option.plan = with_ranks(std::move(planned_option.plan), planned_option.dropped);
    planned_option.plan.fp8 = question.plan.fp8;  // a different precision would change the training result
  }
  std::erase_if(options, [&](const PlannedOption& planned_option) {
    return &planned_option != &options.front() &&
           (planned_option.plan == question.plan || find_problem(planned_option.plan) ||
            !context.can_run(planned_option.plan));
  });
  return found;
}

// The predicted usual step time and the predicted effect of conditions have different errors, so each is
// corrected by separate measurements.
PredictionMemory learned_from(const Question& question, const PlanOption& current_option,
                              const Cluster& cluster) {
  // There may be no measurement of this plan without conditions. A measurement of another plan of the same
  // kind is accurate enough if conditions account for a large fraction of the step time.
  constexpr double kLargeFraction = 0.3, kSmallFraction = 0.02;
  PredictionMemory memory = question.memory;
  const double predicted_added = current_option.step_seconds - current_option.usual_seconds;
  const std::vector<Condition> plan_conditions =
      conditions_of_plan(question.conditions, question.plan, cluster);
  const std::optional<Cause> cause = only_cause(plan_conditions);
  double min_fraction = kSmallFraction;
  std::optional<double> usual_seconds = measured_step(question, question.plan, "", cluster);
  if (!usual_seconds && memory.has_run_undisturbed(question.plan))
    usual_seconds = current_option.usual_seconds * memory.trust_in(question.plan, question.plan).factor,
    min_fraction = kLargeFraction;
  if (!usual_seconds || !cause || predicted_added < min_fraction * current_option.usual_seconds ||
      question.seconds <= *usual_seconds) {
    memory.record(question.plan, current_option.step_seconds, question.seconds, plan_conditions.empty());
    return memory;
  }
  memory.record(question.plan, current_option.usual_seconds, *usual_seconds, true);
  const double factor = memory.trust_in(question.plan, question.plan).factor;
  memory.record_slowdown_ratio(*cause, (question.seconds - *usual_seconds) / (factor * predicted_added));
  return memory;
}

std::vector<PlannedOption> priced(std::vector<PlannedOption> options, const Question& question,
                                  const PredictionMemory& memory, const AdaptationContext& context,
                                  const Cluster& cluster) {
  for (PlannedOption& planned_option : options) {
    apply_corrections(planned_option, question, memory, cluster);
    use_measured_step(planned_option, question, cluster);
  }
  PlanOption& current_option = options.front().option;
  if (question.is_settled) current_option.step_seconds = question.seconds, current_option.is_measured = true;
  current_option.response = Response::stay;
  for (PlannedOption& planned_option : options)
    if (context.undone_steps)
      planned_option.option.undone_steps =
          context.undone_steps(planned_option.plan, planned_option.option.step_seconds);
  return options;
}

}  // namespace optimus
