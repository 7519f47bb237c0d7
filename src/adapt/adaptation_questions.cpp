// Implements adaptation_controller.h: builds the input for comparisons of plans (adapt/question.h).
#include <algorithm>
#include <cmath>

#include "adapt/adaptation_controller.h"
#include "adapt/finding_text.h"
#include "plan/plan_json.h"

namespace optimus {

Question AdaptationController::question(bool is_provisional) const {
  const std::size_t steps = is_provisional ? std::size_t{kEarlySteps} : kRecentSteps;
  const std::vector<Finding> findings =
      noticeable_findings(is_provisional ? findings_.provisional().findings() : findings_.findings(), steps);
  Question question;
  question.plan = history_.plan(), question.conditions = answerable_conditions(findings);
  question.seconds = history_.step_seconds(steps);
  question.is_provisional = is_provisional;
  question.predicted_gain = verdicts_.predicted_gain();
  question.measured_gain = verdicts_.verdict(history_.num_observations());
  question.totals = verdicts_.totals();
  question.since_switch = seconds_since_switch();
  question.exploration_left = verdicts_.exploration_left(context_.clock());
  if (context_.last_step > 0)
    question.run_left = question.seconds * static_cast<double>(std::max<std::int64_t>(
                                               0, context_.last_step - history_.last_step()));
  question.step_times = history_.step_times();
  question.memory = memory_;
  if (context_.scripted) {
    question.true_remaining_seconds =
        seconds_until_change(*context_.scripted, context_.clock(), context_.policy.horizon);
    question.is_settled = history_.has_lasting_conditions(question.conditions);
  }
  add_plans_to_return_to(question);
  add_calibration(question);
  question.evidence = evidence_of(findings), question.findings = recorded(findings);
  for (const Finding& finding : findings) {
    if (!is_mitigable_by_plan(finding.cause)) continue;
    const double age = question.seconds * 10;  // a condition is found after about ten steps
    question.ongoing.push_back({finding.cause, finding.factor, age});
    for (const int location : finding.locations) question.spreads[{finding.cause, location}] = finding.spread;
  }
  return question;
}

// Shortly after a switch, the step time of the previous plan is still up to date. Other plans have only older
// measurements.
void AdaptationController::add_plans_to_return_to(Question& question) const {
  const std::optional<Plan>&original_plan = history_.original_plan(), &previous = history_.previous_plan();
  const bool is_fresh = history_.num_observations() <= 2 * kVerdictObservations && !context_.scripted &&
                        !question.is_provisional && conditions_since_switch().empty();
  if (is_fresh && previous && question.measured_gain.value_or(0) < 1 / kNoticeableFactor - 1) {
    question.seconds_before = verdicts_.seconds_before();
    question.earlier_plans.push_back(*previous);
    return;
  }
  if (original_plan) question.earlier_plans.push_back(*original_plan);
  if (previous && previous != original_plan) question.earlier_plans.push_back(*previous);
}

void AdaptationController::add_calibration(Question& question) const {
  question.machines = calibration_.refreshed(context_.machines);
  question.ring_factor = calibration_.ring_factor(context_.machines);
  question.uncertainty = calibration_.uncertainty(BlockRole::layer) / std::sqrt(double{kRecentSteps});
  const double layers = calibration_.rate(BlockRole::layer).value_or(1);
  for (std::size_t role = 0; role < kBlockRoles; ++role)
    question.rates[role] = calibration_.rate(static_cast<BlockRole>(role)).value_or(layers) / layers;
}

// Questions with the same key have the same answer. The key includes findings about devices that the plan
// does not use, because these devices may have recovered.
std::string AdaptationController::question_key() const {
  const Plan& plan = history_.plan();
  std::string key =
      condition_key(answerable_conditions(noticeable_findings(findings(), kRecentSteps)), plan, cluster_) +
      plan_hash(plan);
  for (const Finding& finding : findings_.unseen().findings())
    key += fmt::format(" {} {}", word_of(finding.cause), finding.locations.front());
  return has_missed_gain() ? key + " disappointed" : key;
}

std::string AdaptationController::evidence_of(const std::vector<Finding>& findings) const {
  std::string evidence;
  for (const Finding& finding : findings)
    if (is_mitigable_by_plan(finding.cause)) evidence += (evidence.empty() ? "" : ", ") + text(finding);
  if (!evidence.empty()) return evidence;
  return findings_.was_ever_slow() ? "the condition that slowed the run has ended"
                                   : "measured step times favor another plan";
}

// Whether steps are much longer than usual for an unknown reason. Plans must not be compared in this case,
// because the other plans may be slower for the same reason.
bool AdaptationController::is_unexplained() const {
  constexpr double kMuchLonger = 1.15;
  return !context_.scripted && history_.num_recent() >= kEarlySteps &&
         conditions_of_plan(findings_.conditions(), history_.plan(), cluster_).empty() &&
         history_.ratio_to_usual(kEarlySteps).value_or(1) >= kMuchLonger;
}

// Scripted conditions are taken into account even before they have made steps longer.
bool AdaptationController::are_steps_longer(std::size_t last_steps) const {
  return context_.scripted || history_.are_steps_longer(last_steps);
}

// Removes findings that affect the plan but do not make steps longer, such as a slow link whose transfers are
// hidden behind computation. Heavy stages are kept, because they have been heavy since the plan started and
// are already part of the usual step time.
std::vector<Finding> AdaptationController::noticeable_findings(std::vector<Finding> findings,
                                                               std::size_t last_steps) const {
  if (history_.num_recent() == 0 || are_steps_longer(last_steps)) return findings;
  std::erase_if(findings, [&](const Finding& finding) {
    return finding.cause != Cause::heavy_stage &&
           !conditions_of_plan(answerable_conditions({finding}), history_.plan(), cluster_).empty();
  });
  return findings;
}

// A second switch within a few steps would probably respond to the same condition, or to noise in the first
// steps of the new plan. Only a new severe condition removes this waiting time.
double AdaptationController::seconds_since_switch() const {
  constexpr double kMuchWorse = 1.3;
  for (const Condition& condition : conditions_since_switch())
    if (condition.factor >= kMuchWorse) return Situation{}.since_switch;
  return history_.seconds_since_switch(context_.clock());
}

}  // namespace optimus
