// See deciding.h: what the run could go on with, what that would take, and which of it the policy chooses. On a thread of its own.
#include <algorithm>
#include <cmath>

#include "adapt/deciding.h"
#include "base/error.h"
#include "base/text.h"
#include "plan/describe.h"
#include "plan/validate.h"

namespace optimus {
namespace {

// That all of them have; none where they have several, or there is nothing.
std::optional<Cause> one_cause(const std::vector<Condition>& conditions) {
  if (conditions.empty()) return std::nullopt;
  for (const Condition& one : conditions)
    if (one.cause != conditions.front().cause) return std::nullopt;
  return conditions.front().cause;
}

// A plan whose devices are numbered without those that it does without: as ranks.
Plan on_others(Plan plan, const std::vector<int>& dropped) {
  if (dropped.empty()) return plan;
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices)
        for (const int gone : dropped)  // in order
          if (gone <= device) ++device;
  return plan;
}

}  // namespace

// What the run can go on with, and what it is believed to take: by the cost model, by what kinds of plans took of that before, and by what
// this very plan took under the same conditions.
std::vector<PlannedOption> Deciding::priced_options(const Question& question) const {
  const Cluster cluster(question.machines);
  ResponseLimits limits = facts_.limits;
  limits.known.insert(limits.known.end(), question.earlier.begin(), question.earlier.end());
  if (facts_.undone_steps)
    if (const auto other = with_other_redundancy(question.plan, nodes())) limits.known.push_back(*other);
  const Demand usual = facts_.demand(cluster, question.plan);
  Constants constants = with_rates(usual.constants, question.rates);
  constants.ring_residual *= question.ring_factor;
  std::vector<PlannedOption> options = responses(demand_on(usual, cluster, constants), question.plan,
                                                 question.conditions, facts_.costs, limits);
  for (PlannedOption& one : options) {
    one.plan = on_others(std::move(one.plan), one.dropped);
    one.plan.fp8 = question.plan.fp8;  // what is learned stays
  }
  std::erase_if(options, [&](const PlannedOption& one) {
    return &one != &options.front() &&
           (one.plan == question.plan || problem_in(one.plan) || !facts_.can_run(one.plan));
  });
  if (question.is_settled) learn_from(question, options.front().option);
  const std::optional<Cause> cause = one_cause(question.conditions);
  const double more = cause ? memory_.added(*cause) : 1;
  for (PlannedOption& one : options) {
    const PredictionMemory::Trust trust = memory_.trust_in(one.plan, question.plan);
    const double added = std::max(0.0, one.option.step_seconds - one.option.usual_seconds) * trust.factor;
    const auto took = [&](const std::string& conditions) {
      const auto found = question.ran.find(ran_key(one.plan, conditions));
      return found == question.ran.end() ? std::nullopt : std::optional(found->second);
    };
    one.option.usual_seconds = took("").value_or(one.option.usual_seconds * trust.factor);
    one.option.step_seconds = one.option.usual_seconds + added * more;
    const double by_conditions =
        doubt_of_conditions(question, one.plan, added * more / one.option.step_seconds);
    one.option.doubt = std::hypot(std::hypot(one.option.doubt, by_conditions, question.judged.doubt()),
                                  question.doubt, trust.doubt);
    auto known = took(key_of(question.conditions, one.plan));
    if (std::find(question.earlier.begin(), question.earlier.end(), one.plan) != question.earlier.end()) {
      one.option.response = Response::resume;
      if (question.seconds_before) known = question.seconds_before;
    }
    if (known) one.option.step_seconds = *known, one.option.doubt = 0.01, one.option.is_measured = true;
  }
  if (question.is_settled)
    options.front().option.step_seconds = question.seconds, options.front().option.is_measured = true;
  options.front().option.response = Response::stay;
  for (PlannedOption& one : options)
    if (facts_.undone_steps) one.option.undone_steps = facts_.undone_steps(one.plan, one.option.step_seconds);
  return options;
}

double Deciding::doubt_of_conditions(const Question& question, const Plan& plan, double part) const {
  double most = 0;
  for (const Condition& one : concerning(plan, question.conditions))
    if (const auto found = question.spreads.find({one.cause, one.where}); found != question.spreads.end())
      most = std::max(most, found->second * one.factor / (one.factor - 1));  // of what it adds
  return part * most;
}

// What a step takes without conditions and what these add err differently: each is corrected by what was measured of it.
void Deciding::learn_from(const Question& question, const PlanOption& runs) const {
  const double predicted_more = runs.step_seconds - runs.usual_seconds;
  const auto ran = question.ran.find(ran_key(question.plan, ""));
  const std::optional<Cause> cause = one_cause(concerning(question.plan, question.conditions));
  std::optional<double> usual;
  // It may not have run without them, but its kind has: good enough where they are to add much.
  constexpr double kAddsMuch = 0.3, kAddsSomething = 0.02;
  double least = kAddsSomething;
  if (ran != question.ran.end())
    usual = ran->second;
  else if (memory_.knows_quiet(question.plan))
    usual = runs.usual_seconds * memory_.trust_in(question.plan, question.plan).factor, least = kAddsMuch;
  if (!usual || !cause || predicted_more < least * runs.usual_seconds || question.seconds <= *usual)
    return memory_.saw(question.plan, runs.step_seconds, question.seconds,
                       concerning(question.plan, question.conditions).empty());
  memory_.saw(question.plan, runs.usual_seconds, *usual, true);
  const double factor = memory_.trust_in(question.plan, question.plan).factor;
  memory_.saw_added(*cause, (question.seconds - *usual) / (factor * predicted_more));
}

Deciding::Answer Deciding::weigh(const Question& question) const {
  const std::string cause = question.conditions.empty() ? "" : word_of(question.conditions.front().cause);
  std::vector<PlannedOption> options;
  try {
    options = priced_options(question);
  } catch (const UserError&) {
    return {.stay = PlanStay{question.evidence, "nothing else fits", cause},
            .conditions = question.conditions};
  }
  Situation situation{.conditions = question.ongoing};
  Comings comings = facts_.comings;
  optimus::tell(comings, facts_.clock(), num_devices(question.plan), facts_.life, situation);
  situation.recovery_seconds = facts_.costs.detection_seconds + facts_.costs.recovery_seconds;
  situation.since_switch = question.since_switch, situation.exploration_left = question.exploration_left;
  situation.predicted_gain = question.predicted, situation.realised_gain = question.realised;
  situation.true_rest = question.true_rest, situation.run_left = question.run_left;
  tell(question.judged, situation);
  for (const PlannedOption& one : options) {
    situation.options.push_back(one.option);
    situation.devices_present = std::max(situation.devices_present, one.option.devices);
  }
  const Choice choice = choose(facts_.policy, situation);
  const auto gain_of = [&](const PlanOption& one) { return question.seconds / one.step_seconds - 1; };
  std::vector<WeighedPlan> others;
  for (std::size_t i = 1; i < options.size(); ++i)
    if (i != choice.option)
      others.push_back(
          {short_text(options[i].plan), text(situation.options[i].response), gain_of(situation.options[i])});
  if (choice.option == 0 && question.since_switch < facts_.policy.settle_seconds) return {};
  if (choice.option == 0)
    return {.stay = PlanStay{question.evidence, choice.reason, cause, std::move(others)},
            .conditions = question.conditions};
  const PlanOption& chosen = situation.options[choice.option];
  PlanWish wish{.plan = options[choice.option].plan, .why = question.evidence};
  wish.is_suspicion = question.is_suspicion;
  const PlanOption& now = situation.options.front();
  if ((chosen.undone_steps > 0) != (now.undone_steps > 0) && question.conditions.empty())
    wish.why = fmt::format("a device is lost every {}: state is held {}",
                           optimus::text(Seconds(1 / (situation.losses_per_device_second * chosen.devices))),
                           chosen.undone_steps > 0 ? "once" : "twice");
  if (choice.reason == kGainDidNotCome)
    wish.why = question.conditions.empty() ? choice.reason : fmt::format("{} ({})", wish.why, choice.reason);
  if (facts_.policy.kind == PolicyKind::learned) wish.why += fmt::format(" ({})", choice.reason);
  wish.is_placed = !question.conditions.empty() || chosen.response == Response::resume;
  wish.predicted_gain = gain_of(chosen);
  const double saved = 1 - lasting_seconds(situation, chosen) / lasting_seconds(situation, now);
  wish.payback_steps = chosen.pause_seconds / std::max(1e-3 * question.seconds, saved * question.seconds);
  wish.cause = cause, wish.alternatives = std::move(others);
  return {.wish = std::move(wish), .conditions = question.conditions, .pause = chosen.pause_seconds};
}

}  // namespace optimus
