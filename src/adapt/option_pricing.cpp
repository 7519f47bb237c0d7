// Implements option_pricing.h.
#include "adapt/option_pricing.h"

#include <algorithm>
#include <cmath>

#include "adapt/plan_conditions.h"
#include "plan/validate.h"

namespace optimus {
namespace {

// The cause that all conditions share; empty if there are several or none.
std::optional<Cause> only_cause(const std::vector<Condition>& conditions) {
  if (conditions.empty()) return std::nullopt;
  for (const Condition& one : conditions)
    if (one.cause != conditions.front().cause) return std::nullopt;
  return conditions.front().cause;
}

// The planner numbers the devices that a plan uses without the dropped ones. This restores their ranks.
// `dropped` is sorted.
Plan with_ranks(Plan plan, const std::vector<int>& dropped) {
  if (dropped.empty()) return plan;
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices)
        for (const int missing : dropped)
          if (missing <= device) ++device;
  return plan;
}

ResponseLimits limits_of(const Question& question, const AdaptationContext& context, const Cluster& cluster) {
  ResponseLimits limits = context.limits;
  limits.known_plans.insert(limits.known_plans.end(), question.earlier.begin(), question.earlier.end());
  if (context.undone_steps)
    if (const auto other = with_other_redundancy(question.plan, node_of_each_device(cluster)))
      limits.known_plans.push_back(*other);
  return limits;
}

// Relative uncertainty of a step time of which conditions make up this part.
double doubt_of_conditions(const Question& question, const Plan& plan, double part, const Cluster& cluster) {
  double most = 0;
  for (const Condition& one : conditions_of_plan(question.conditions, plan, cluster))
    if (const auto found = question.spreads.find({one.cause, one.where}); found != question.spreads.end())
      most = std::max(most, found->second * one.factor / (one.factor - 1));  // of the time that it adds
  return part * most;
}

std::optional<double> measured_step(const Question& question, const Plan& plan, const std::string& conditions,
                                    const Cluster& cluster) {
  const auto found = question.step_times.find(measurement_key(plan, conditions, cluster));
  return found == question.step_times.end() ? std::nullopt : std::optional(found->second);
}

void correct(PlannedOption& one, const Question& question, const PredictionMemory& memory,
             const Cluster& cluster) {
  const std::optional<Cause> cause = only_cause(question.conditions);
  const double condition_ratio = cause ? memory.added(*cause) : 1;
  const PredictionMemory::Trust trust = memory.trust_in(one.plan, question.plan);
  const double added = std::max(0.0, one.option.step_seconds - one.option.usual_seconds) * trust.factor;
  one.option.usual_seconds =
      measured_step(question, one.plan, "", cluster).value_or(one.option.usual_seconds * trust.factor);
  one.option.step_seconds = one.option.usual_seconds + added * condition_ratio;
  const double by_conditions =
      doubt_of_conditions(question, one.plan, added * condition_ratio / one.option.step_seconds, cluster);
  one.option.doubt = std::hypot(std::hypot(one.option.doubt, by_conditions, question.totals.doubt()),
                                question.doubt, trust.doubt);
}

void use_measured_step(PlannedOption& one, const Question& question, const Cluster& cluster) {
  auto known =
      measured_step(question, one.plan, condition_key(question.conditions, one.plan, cluster), cluster);
  if (std::find(question.earlier.begin(), question.earlier.end(), one.plan) != question.earlier.end()) {
    one.option.response = Response::resume;
    if (question.seconds_before) known = question.seconds_before;
  }
  if (known) one.option.step_seconds = *known, one.option.doubt = 0.01, one.option.is_measured = true;
}

}  // namespace

std::vector<PlannedOption> planned_options(const Question& question, const AdaptationContext& context,
                                           const Cluster& cluster) {
  const Cluster calibrated(question.machines);
  const Demand usual = context.demand(calibrated, question.plan);
  Constants constants = with_rates(usual.constants, question.rates);
  constants.ring_residual *= question.ring_factor;
  std::vector<PlannedOption> options =
      responses(demand_on(usual, calibrated, constants), question.plan, question.conditions, context.costs,
                limits_of(question, context, cluster));
  for (PlannedOption& one : options) {
    one.plan = with_ranks(std::move(one.plan), one.dropped);
    one.plan.fp8 = question.plan.fp8;  // another precision would change what is learned
  }
  std::erase_if(options, [&](const PlannedOption& one) {
    return &one != &options.front() &&
           (one.plan == question.plan || find_problem(one.plan) || !context.can_run(one.plan));
  });
  return options;
}

// The predicted usual step time and the predicted effect of conditions have different errors: each is
// corrected by its own measurement.
PredictionMemory learned_from(const Question& question, const PlanOption& now, const Cluster& cluster) {
  // The plan may not have run without conditions, but its kind has: that is accurate enough if conditions are
  // to add much.
  constexpr double kAddsMuch = 0.3, kAddsSomething = 0.02;
  PredictionMemory memory = question.memory;
  const double predicted_more = now.step_seconds - now.usual_seconds;
  const std::vector<Condition> own = conditions_of_plan(question.conditions, question.plan, cluster);
  const std::optional<Cause> cause = only_cause(own);
  double least = kAddsSomething;
  std::optional<double> usual = measured_step(question, question.plan, "", cluster);
  if (!usual && memory.knows_quiet(question.plan))
    usual = now.usual_seconds * memory.trust_in(question.plan, question.plan).factor, least = kAddsMuch;
  if (!usual || !cause || predicted_more < least * now.usual_seconds || question.seconds <= *usual) {
    memory.record(question.plan, now.step_seconds, question.seconds, own.empty());
    return memory;
  }
  memory.record(question.plan, now.usual_seconds, *usual, true);
  const double factor = memory.trust_in(question.plan, question.plan).factor;
  memory.record_added(*cause, (question.seconds - *usual) / (factor * predicted_more));
  return memory;
}

std::vector<PlannedOption> priced(std::vector<PlannedOption> options, const Question& question,
                                  const PredictionMemory& memory, const AdaptationContext& context,
                                  const Cluster& cluster) {
  for (PlannedOption& one : options) {
    correct(one, question, memory, cluster);
    use_measured_step(one, question, cluster);
  }
  PlanOption& now = options.front().option;
  if (question.is_settled) now.step_seconds = question.seconds, now.is_measured = true;
  now.response = Response::stay;
  for (PlannedOption& one : options)
    if (context.undone_steps)
      one.option.undone_steps = context.undone_steps(one.plan, one.option.step_seconds);
  return options;
}

}  // namespace optimus
