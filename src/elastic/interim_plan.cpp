// Implements interim_plan.h.
#include "elastic/interim_plan.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "base/error.h"
#include "recovery/takeover.h"

namespace optimus {
namespace {

// Typical number of seconds until the planner's plan is available. Until then, the run uses the interim plan.
constexpr double kPlannerSeconds = 5;
// A switch is worthwhile if (new step time) / (current step time) is below this value.
constexpr double kMaxStepTimeRatio = 0.98;

bool is_ready(const auto& future) {
  return future.valid() && future.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

std::string text(InterimPlan::Kind kind) {
  switch (kind) {
    case InterimPlan::Kind::planned:
      return "the planner's plan";
    case InterimPlan::Kind::from_templates:
      return "plan from pipeline templates";
    case InterimPlan::Kind::takeover:
      return "takeover by the ranks with the same layers";
  }
  return "";
}

AvailableRanks present_ranks(const StateLocation& state) {
  // The plan may be for a different training phase. membership_change.cpp later sets the batch of the current
  // phase.
  return {.num_ranks = state.num_present,
          .num_staying = state.num_staying,
          .copies = MasterCopies::owned,
          .is_phase = true};
}

std::optional<Plan> takeover_plan(const StateLocation& state) {
  if (state.plan.copy_distance != 0)
    return std::nullopt;  // the ranks that repeat updates for copies would also change
  std::optional<Plan> plan = state.plan;
  while (plan && num_device_numbers(*plan) > state.num_staying)
    plan = without_device(*plan, num_device_numbers(*plan) - 1);
  return plan;
}

InterimPlanner::InterimPlanner(Inputs inputs) : inputs_(std::move(inputs)) {
  if (!inputs_.make_templates) return;
  templates_ =
      std::async(std::launch::async, [make = inputs_.make_templates] {
        Feasible<PipelineTemplates> templates = make();
        // Null if the model does not fit on these devices as a pipeline.
        return templates ? std::make_shared<const PipelineTemplates>(*std::move(templates)) : nullptr;
      }).share();
}

void InterimPlanner::plan(int num_devices) {
  if (num_devices > 0 && !planned_.contains(num_devices))
    planned_[num_devices] = std::async(std::launch::async, [choose = inputs_.choose, num_devices] {
                              try {
                                return choose(num_devices);
                              } catch (const ReportedError& error) {  // it could not read its inputs
                                return Feasible<Plan>(infeasible("{}", error.what()));
                              }
                            }).share();
}

void InterimPlanner::plan_ahead(int num_devices) { plan(num_devices - 1), plan(num_devices + 1); }

bool InterimPlanner::is_planned(int num_devices) {
  plan(num_devices);
  return is_ready(planned_.at(num_devices));
}

std::optional<InterimPlan> InterimPlanner::substitute_plan(int num_devices,
                                                           const std::optional<StateLocation>& state) {
  if (!inputs_.step_seconds || !inputs_.move_seconds) return std::nullopt;
  std::vector<std::pair<double, InterimPlan>> found;
  const auto consider = [&](Plan plan, InterimPlan::Kind kind) {
    if (state) plan.fp8 = state->plan.fp8;
    const Feasible<double> move = state ? inputs_.move_seconds(*state, plan) : 0;
    const Feasible<double> step = move ? inputs_.step_seconds(plan) : move;
    if (move && step) found.emplace_back(*move + kPlannerSeconds * *step, InterimPlan{plan, kind});
  };
  if (is_ready(templates_) && templates_.get() != nullptr && num_devices >= templates_.get()->smallest())
    consider(templates_.get()->plan_for(num_devices), InterimPlan::Kind::from_templates);
  if (const std::optional<Plan> plan = state ? takeover_plan(*state) : std::nullopt)
    consider(*plan, InterimPlan::Kind::takeover);
  if (found.empty()) return std::nullopt;
  return std::min_element(found.begin(), found.end(),
                          [](const auto& a, const auto& b) { return a.first < b.first; })
      ->second;
}

Feasible<InterimPlan> InterimPlanner::plan_for(int num_devices, const std::optional<StateLocation>& state) {
  if (!is_planned(num_devices))
    if (std::optional<InterimPlan> interim = substitute_plan(num_devices, state)) return *interim;
  const Feasible<Plan>& plan = planned_.at(num_devices).get();
  if (!plan) return tl::unexpected(plan.error());
  InterimPlan planned{*plan};
  if (state) planned.plan.fp8 = state->plan.fp8;  // keep the learned scales
  return planned;
}

bool InterimPlanner::is_settled(int num_devices) { return is_planned(num_devices); }

std::optional<Plan> InterimPlanner::improvement(const InterimPlan& interim_plan, int num_devices) {
  if (interim_plan.kind == InterimPlan::Kind::planned || !is_planned(num_devices)) return std::nullopt;
  const Feasible<Plan>& planned = planned_.at(num_devices).get();
  if (!planned) return std::nullopt;
  Plan better = *planned;
  better.fp8 = interim_plan.plan.fp8;
  const Feasible<double> next = inputs_.step_seconds(better), now = inputs_.step_seconds(interim_plan.plan);
  return next && now && *next < kMaxStepTimeRatio * *now ? std::optional(better) : std::nullopt;
}

}  // namespace optimus
