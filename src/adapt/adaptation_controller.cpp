// Implements adaptation_controller.h: processes observations and proposals. Questions are built in
// adaptation_questions.cpp.
#include "adapt/adaptation_controller.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "adapt/finding_text.h"
#include "adapt/weighing.h"

namespace optimus {
namespace {

// Plans are compared once after this number of observations of a new plan or training phase.
constexpr int kObservationsToCompare = 30;
// The detector should find the cause of longer steps within this number of observations.
constexpr int kMaxUnexplained = 30;

}  // namespace

AdaptationController::AdaptationController(AdaptationContext context, const Plan& plan,
                                           Calibration& calibration)
    : context_(std::move(context)),
      cluster_(context_.machines),
      calibration_(calibration),
      history_(cluster_, plan),
      findings_(context_.model, cluster_, history_, calibration, context_.policy.horizon),
      verdicts_(context_.clock()),
      probes_(context_.has_host_links) {}

AdaptationController::~AdaptationController() {
  if (weighing_.valid()) weighing_.wait();
}

void AdaptationController::observe(const Observation& observation) {
  if (!history_.is_current(observation)) return;
  history_.observe(observation);
  update_findings(observation);
  update_verdict();
  report_unanswerable();
  report_phase(observation);
  weigh_if_due();
  weigh_provisional_if_due();
}

void AdaptationController::update_findings(const Observation& observation) {
  const double now = context_.clock();
  findings_.detect(observation);
  if (context_.scripted)
    findings_.replace_detected(scripted_findings(*context_.scripted, now, cluster_, observation.step));
  findings_.add_held();
  const bool has_ambiguous_link = findings_.narrow_links(probes_.network_slowdowns());
  findings_.settle(observation, now);
  schedule_probe(has_ambiguous_link);
  findings_.provisional().observe(observation);
  if (pending_) ++pending_->num_observations;
  num_unexplained_ = is_unexplained() ? num_unexplained_ + 1 : 0;
}

void AdaptationController::schedule_probe(bool has_ambiguous_link) {
  probes_.observe(has_ambiguous_link);
  if (!context_.decides() || pending_) return;
  const double now = context_.clock();
  if (has_ambiguous_link) probes_.request_for_ambiguous_link(now);
  probes_.request_for_unseen(findings_.unseen(), findings_.probe_interval(now), now);
  if (cluster_.num_nodes() >= 2 && findings_.is_quiet()) probes_.request_for_channels(calibration_);
}

void AdaptationController::probe_completed(const ProbeResult& result) {
  const std::optional<ProbeRequest> request = probes_.complete(result);
  if (!request) return;
  if (request->speeds)
    findings_.apply_probe(result, probes_.sees_networks(), context_.clock());
  else if (findings_.is_quiet())
    calibration_.learn(result, cluster_);
  else
    probes_.retry_channels();
}

// Updates the measured gain of the last switch. It is discarded if an unrelated condition slowed the run down
// during the measurement.
void AdaptationController::update_verdict() {
  if (history_.has_step_time()) {
    history_.record_step_time(findings_.conditions());
    verdicts_.measure(history_.step_seconds());
  }
  const int num_observations = history_.num_observations();
  if (num_observations <= kVerdictObservations &&
      (!conditions_since_switch().empty() || findings_.is_any_plan_slowed()))
    verdicts_.mark_unreliable();
  if (num_observations != kVerdictObservations || !verdicts_.verdict(num_observations)) return;
  verdicts_.judge();
  // The rest is needed only if the run might return to the previous plan. It does not apply to scripted
  // conditions, because the step time before the switch was not measured under them.
  if (*verdicts_.measured_gain() >= 0 || context_.scripted) return;
  // The machines have not changed, but if the cost model is wrong about one of the plans, the detector finds
  // different conditions on each plan. So each plan's step time is also recorded for the conditions found on
  // the other plan. Otherwise the next comparison would predict the step time of a plan that has just been
  // measured.
  history_.record(history_.plan(), verdicts_.answered_conditions(), history_.step_seconds());
  history_.record(*history_.plan_before_proposal(), findings_.conditions(), verdicts_.seconds_before());
}

void AdaptationController::report_unanswerable() {
  for (const Finding& finding : findings()) {
    const bool is_memory = finding.cause == Cause::memory;
    if (!is_memory && finding.cause != Cause::data_loading && finding.cause != Cause::uneven_lengths)
      continue;
    if (!is_memory && !context_.decides()) continue;
    const std::string reason = is_memory ? "the stage will run out of memory soon"
                               : finding.cause == Cause::data_loading
                                   ? "only faster data loading helps"
                                   : "samples are already distributed as evenly as possible";
    const std::string place = is_memory ? fmt::format(" {}", finding.locations.front()) : "";
    stay_reports_.add_once(word_of(finding.cause) + place, {text(finding), reason, word_of(finding.cause)});
  }
}

void AdaptationController::report_phase(const Observation& observation) {
  if (!context_.decides()) return;
  if (auto stay = phase_.take_plateau_report()) stay_reports_.add(std::move(*stay));
  auto stay = phase_.observe_lengths(observation.lengths);
  if (!stay) return;
  stay_reports_.add(std::move(*stay));
  // Step times that were measured with other sequence lengths cannot be compared with later ones.
  has_sought_better_plan_ = false;
  verdicts_.mark_unreliable();
  history_.forget_step_times();
}

void AdaptationController::weigh_if_due() {
  // Scripted conditions are known without measurements.
  const std::size_t min_steps = context_.scripted ? 1 : kRecentSteps;
  if (weighing_.valid() || pending_ || !probes_.is_idle() || history_.num_recent() < min_steps) return;
  const std::vector<Condition> conditions = findings_.conditions(),
                               answerable =
                                   answerable_conditions(noticeable_findings(findings(), kRecentSteps));
  if (answerable.size() < conditions.size() && context_.decides())
    stay_reports_.add_for(conditions, {evidence_of(findings()), "step times have not increased",
                                       word_of(conditions.front().cause), recorded(findings())});
  const bool is_calibrated = history_.num_observations() >= kObservationsToCompare;
  const bool seeks_better =
      context_.seeks_better_plan && context_.decides() && !has_sought_better_plan_ && is_calibrated;
  if (answerable.empty() && !history_.original_plan() && !has_missed_gain() && !seeks_better) return;
  if (num_unexplained_ > 0 && num_unexplained_ <= kMaxUnexplained) return;
  if (!schedule_.take_if_due(question_key(), context_.clock())) return;
  if (is_calibrated) has_sought_better_plan_ = true;
  start_weighing(false);
}

void AdaptationController::weigh_provisional_if_due() {
  if (weighing_.valid() || pending_ || !probes_.is_idle() || history_.num_recent() < kEarlySteps) return;
  if (!context_.decides() || context_.scripted || !findings_.is_quiet()) return;
  const double now = context_.clock();
  if (!findings_.provisional().may_be_weighed(now) || !are_steps_longer(kEarlySteps)) return;
  findings_.provisional().mark_weighed(now);
  start_weighing(true);
}

void AdaptationController::start_weighing(bool is_provisional) {
  is_weighing_provisional_ = is_provisional;
  weighing_ = std::async(std::launch::async,
                         [&context = context_, &cluster = cluster_, question = question(is_provisional)] {
                           return weigh(question, context, cluster);
                         });
}

std::optional<PlanProposal> AdaptationController::take_proposal() {
  if (!weighing_.valid() || !has_answer()) return std::nullopt;
  Answer answer = weighing_.get();
  memory_ = std::move(answer.memory);
  if (answer.stay_decision && context_.decides() && !is_weighing_provisional_)
    stay_reports_.add_for(answer.conditions, std::move(*answer.stay_decision));
  if (!answer.proposal || history_.num_recent() == 0) return std::nullopt;
  pending_ = PendingProposal{.conditions = std::move(answer.conditions),
                             .pause = answer.pause,
                             .step_seconds = history_.step_seconds(),
                             .is_provisional = is_weighing_provisional_,
                             .proposed_at = context_.clock()};
  if (pending_->is_provisional && provisional_status() == ProvisionalStatus::rejected) {
    proposal_cancelled();
    return std::nullopt;
  }
  return std::move(answer.proposal);
}

void AdaptationController::plan_adopted(const Plan& plan, const std::optional<PlanProposal>& proposal,
                                        std::int64_t step) {
  if (weighing_.valid()) memory_ = weighing_.get().memory;
  PendingProposal pending = std::exchange(pending_, std::nullopt).value_or(PendingProposal{});
  // When a provisional proposal is made, most of the recent steps are still fast. Its gain is relative to
  // slow steps, so the step time is measured again.
  const bool has_late_steps = pending.is_provisional || pending.step_seconds == 0;
  if (proposal && has_late_steps && history_.num_recent() > 0) pending.step_seconds = history_.step_seconds();
  const bool carries_findings = proposal && !context_.scripted;
  if (carries_findings && !pending.conditions.empty())
    history_.record_if_unknown(pending.conditions, pending.step_seconds);
  const Plan& previous_plan = history_.plan();
  if (plan.batch != previous_plan.batch || plan.sequence_length != previous_plan.sequence_length)
    has_sought_better_plan_ = false;
  const double now = context_.clock();
  findings_.leave_plan();
  history_.adopt(plan, proposal.has_value(), step + 1, now);
  findings_.begin_plan(carries_findings, now);
  verdicts_.begin(proposal, std::move(pending));
  probes_.reset();
  stay_reports_.reset();
  phase_.reset_lengths();
  num_unexplained_ = 0;
}

void AdaptationController::proposal_refused() {
  pending_.reset();
  schedule_.back_off(question_key(), context_.clock());
}

ProvisionalStatus AdaptationController::provisional_status() const {
  if (!pending_) return ProvisionalStatus::rejected;
  return optimus::provisional_status(*pending_, findings_.conditions(),
                                     answerable_conditions(findings_.provisional().findings()),
                                     context_.clock());
}

void AdaptationController::proposal_cancelled() {
  if (provisional_status() == ProvisionalStatus::rejected)
    findings_.provisional().mark_rejected(context_.clock());
  pending_.reset();
}

}  // namespace optimus
