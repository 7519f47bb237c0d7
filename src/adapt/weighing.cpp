// Implements weighing.h.
#include "adapt/weighing.h"

#include <algorithm>

#include "adapt/option_pricing.h"
#include "base/error.h"
#include "base/text.h"
#include "plan/describe.h"
#include "policy/decide.h"

namespace optimus {
namespace {

std::string cause_of(const Question& question) {
  return question.conditions.empty() ? "" : word_of(question.conditions.front().cause);
}

double gain_of(const PlanOption& option, const Question& question) {
  return question.seconds / option.step_seconds - 1;
}

Situation situation_of(const Question& question, const std::vector<PlannedOption>& options,
                       const AdaptationContext& context) {
  Situation situation{.conditions = question.ongoing};
  MembershipHistory membership = context.membership;
  describe_membership(membership, context.clock(), num_devices(question.plan), context.expected_lifetime,
                      situation);
  situation.recovery_seconds = context.costs.detection_seconds + context.costs.recovery_seconds;
  situation.since_switch = question.since_switch, situation.exploration_left = question.exploration_left;
  situation.predicted_gain = question.predicted_gain, situation.measured_gain = question.measured_gain;
  situation.true_remaining_seconds = question.true_remaining_seconds, situation.run_left = question.run_left;
  question.totals.describe(situation);
  for (const PlannedOption& planned_option : options) {
    situation.options.push_back(planned_option.option);
    situation.devices_present = std::max(situation.devices_present, planned_option.option.devices);
  }
  return situation;
}

std::vector<PlanAlternative> alternatives_of(const Question& question,
                                             const std::vector<PlannedOption>& options, std::size_t chosen) {
  std::vector<PlanAlternative> result;
  for (std::size_t i = 1; i < options.size(); ++i)
    if (i != chosen)
      result.push_back({short_text(options[i].plan), text(options[i].option.response),
                        gain_of(options[i].option, question)});
  return result;
}

std::string reason_for(const Question& question, const Situation& situation, const Choice& choice,
                       PolicyKind policy) {
  const PlanOption &chosen = situation.options[choice.option], &now = situation.options.front();
  std::string reason = question.evidence;
  if ((chosen.undone_steps > 0) != (now.undone_steps > 0) && question.conditions.empty())
    reason = fmt::format("a device is lost every {}: switching to {} of the optimizer state",
                         text(Seconds(1 / (situation.losses_per_device_second * chosen.devices))),
                         chosen.undone_steps > 0 ? "one copy" : "two copies");
  if (choice.reason == kGainMissed)
    reason = question.conditions.empty() ? choice.reason : fmt::format("{} ({})", reason, choice.reason);
  if (policy == PolicyKind::learned) reason += fmt::format(" ({})", choice.reason);
  return reason;
}

PlanProposal proposal_of(const Question& question, const std::vector<PlannedOption>& options,
                         const Situation& situation, const Choice& choice, PolicyKind policy) {
  const PlanOption &chosen = situation.options[choice.option], &now = situation.options.front();
  PlanProposal proposal{.plan = options[choice.option].plan,
                        .why = reason_for(question, situation, choice, policy)};
  proposal.is_placed = !question.conditions.empty() || chosen.response == Response::resume;
  proposal.is_provisional = question.is_provisional;
  proposal.predicted_gain = gain_of(chosen, question);
  const double saved = 1 - lasting_seconds(situation, chosen) / lasting_seconds(situation, now);
  proposal.payback_steps = chosen.pause_seconds / std::max(1e-3 * question.seconds, saved * question.seconds);
  proposal.cause = cause_of(question), proposal.findings = question.findings;
  proposal.alternatives = alternatives_of(question, options, choice.option);
  return proposal;
}

}  // namespace

Answer weigh(const Question& question, const AdaptationContext& context, const Cluster& cluster) {
  Answer answer{.conditions = question.conditions, .memory = question.memory};
  Feasible<std::vector<PlannedOption>> planned = planned_options(question, context, cluster);
  if (!planned) {
    answer.stay_decision =
        StayDecision{question.evidence, "no other plan fits", cause_of(question), question.findings};
    return answer;
  }
  if (question.is_settled) answer.memory = learned_from(question, planned->front().option, cluster);
  const std::vector<PlannedOption> options =
      priced(*std::move(planned), question, answer.memory, context, cluster);
  const Situation situation = situation_of(question, options, context);
  const Choice choice = choose(context.policy, situation);
  if (choice.option > 0) {
    answer.proposal = proposal_of(question, options, situation, choice, context.policy.kind);
    answer.pause = situation.options[choice.option].pause_seconds;
  } else if (question.since_switch >= context.policy.settle_seconds) {
    answer.stay_decision = StayDecision{question.evidence, choice.reason, cause_of(question),
                                        question.findings, alternatives_of(question, options, 0)};
  }
  return answer;
}

}  // namespace optimus
