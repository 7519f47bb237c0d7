// Implements plan_switch_controller.h.
#include "switching/plan_switch_controller.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <chrono>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "plan/describe.h"
#include "plan/phase.h"
#include "plan/plan_json.h"

namespace optimus {
namespace {

// A scripted plan is prepared this many steps before its switch.
constexpr std::int64_t kStepsAhead = 3;
constexpr Seconds kPrepareTimeout{60};  // preparation fails if other ranks take longer to connect
const Group kWorld{Role::world, {}};

// Returns the reason that decisions record for a switch to another phase, which changes the batch or the
// sequence length.
std::string phase_text(const Plan& from, const Plan& to) {
  return "phase: " + text(Phase{0, from.batch, from.sequence_length}, Phase{0, to.batch, to.sequence_length});
}

}  // namespace

PlanSwitchController::PlanSwitchController(SwitchContext facts, PlanPart& part,
                                           std::vector<ScriptedSwitch> script,
                                           std::optional<RequestSources> sources, Refusal refusal,
                                           SwitchListener& listener)
    : facts_(std::move(facts)),
      part_(part),
      script_(std::move(script)),
      sources_(std::move(sources)),
      refusal_(std::move(refusal)),
      listener_(listener),
      requested_plan_(part.plan),
      scripted_plan_(part.plan) {}

PlanSwitchController::~PlanSwitchController() {
  if (attempt_ && attempt_->prepared.valid()) attempt_->prepared.wait();
  end_precopy();
}

void PlanSwitchController::release() {
  // The preparation thread may be waiting for other ranks.
  if (attempt_) facts_.comm.abandon("the training has failed");
  end_precopy();
  for (int number = num_dropped_; number <= num_attempts_; ++number) facts_.comm.drop(number);
}

StepVote PlanSwitchController::vote() {
  if (sources_ && !attempt_ && num_requested_ == num_begun_) take_request();
  StepVote vote{.ends = false, .asked = std::max(num_requested_, num_begun_), .prepared = num_attempts_};
  const bool is_preparing = attempt_ && !attempt_->ready &&
                            attempt_->prepared.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (is_awaiting_confirmation() || is_preparing) --vote.prepared;
  if (drain_) vote.drained = drain_->rank;
  return vote;
}

void PlanSwitchController::refuse_untried(const std::string& why) {
  const std::string line = listener_.switch_ended({.kind = SwitchOutcome::Kind::not_tried,
                                                   .why_not = why,
                                                   .why = request_->why,
                                                   .proposal = proposal_,
                                                   .from = requested_plan_,
                                                   .to = request_->plan.value_or(requested_plan_)});
  if (!proposal_) sources_->requests.write_answer(request_->name, {false, line});
  request_.reset(), proposal_.reset();
}

// A confirmed finding stays confirmed, because other ranks may have acted on it. Scripted plans and requests
// do not wait for a provisional finding.
bool PlanSwitchController::is_awaiting_confirmation() {
  if (!attempt_ || attempt_->is_scripted || attempt_->ready || !proposal_ || !proposal_->is_provisional)
    return false;
  constexpr std::int64_t kVoteSteps = 2;  // steps until all ranks have acted on a vote
  if (next_scripted_ < script_.size() && script_[next_scripted_].step - kStepsAhead - kVoteSteps <= step_)
    return false;
  const ProvisionalStatus now = sources_->proposals->provisional_status();
  if (now == ProvisionalStatus::confirmed) proposal_->is_provisional = false;
  return now == ProvisionalStatus::open && !sources_->requests.has_waiting_requests();
}

// If the finding of a proposal is still provisional when the attempt ends, the plan is refused.
PlanSwitchController::Prepared PlanSwitchController::take_prepared() {
  Prepared prepared = attempt_->prepared.get();
  if (!attempt_->is_scripted && proposal_ && proposal_->is_provisional)
    prepared.why_not = "its reason no longer applies", prepared.is_lost = false;
  return prepared;
}

bool PlanSwitchController::take_proposal() {
  if (sources_->proposals == nullptr) return false;
  proposal_ = sources_->proposals->take_proposal();
  if (!proposal_) return false;
  request_ = SwitchRequest{"", proposal_->plan, proposal_->why};
  return true;
}

// Fetches the next request. Returns whether it is a request for a plan.
bool PlanSwitchController::take_next_request() {
  if (drain_) return false;
  std::optional<ControlRequest> next = sources_->requests.next();
  if (!next) return false;
  if (SwitchRequest* const plan = std::get_if<SwitchRequest>(&*next)) {
    request_ = std::move(*plan);
    return true;
  }
  const DrainRequest& drain = std::get<DrainRequest>(*next);
  const int size = facts_.comm.size();
  if (!sources_->can_drain)
    sources_->requests.write_answer(
        drain.name, {false, "no rank can leave this run, because it is static or has a single process"});
  else if (drain.rank >= size || size == 1)
    sources_->requests.write_answer(
        drain.name, {false, size == 1 ? "the last device cannot be drained"
                                      : fmt::format("no device {}; expected 0 to {}", drain.rank, size - 1)});
  else
    drain_ = sources_->requests.claim(drain.name) ? std::optional(drain) : std::nullopt;
  return false;
}

// Processes one request at a time. The planner runs while steps continue.
void PlanSwitchController::take_request() {
  if (!request_ && !take_next_request() && (drain_ || !take_proposal())) return;
  if (!request_->plan && !planned_choice_.valid())
    planned_choice_ = std::async(std::launch::async, sources_->choose, requested_plan_);
  if (!request_->plan) {
    if (planned_choice_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    try {
      Feasible<Plan> chosen = planned_choice_.get();
      if (!chosen) return refuse_untried(chosen.error().why);
      request_->plan = *std::move(chosen);
    } catch (const ReportedError& error) {  // the planner could not read its inputs
      return refuse_untried(error.what());
    }
  }
  if (*request_->plan == requested_plan_)
    return refuse_untried(fmt::format("the run already uses plan {} ({})",
                                      plan_hash(requested_plan_).substr(0, 4), short_text(requested_plan_)));
  ++num_requested_;
}

void PlanSwitchController::step_ended(std::int64_t step, const StepVote& agreed) {
  step_ = step;
  const bool are_all_prepared = attempt_ && agreed.prepared == num_attempts_;
  if (are_all_prepared && !attempt_->is_scripted && !begin_precopy()) end();
  if (!attempt_ && agreed.asked > num_begun_) begin_requested();
  while (next_scripted_ < script_.size() && script_[next_scripted_].step < step) ++next_scripted_;
  if (next_scripted_ == script_.size()) return;
  const ScriptedSwitch& next = script_[next_scripted_];
  const bool is_due = next.step == step;
  if (are_all_prepared && attempt_ && attempt_->is_scripted && next.step == step + 1) begin_precopy();
  if (is_due && attempt_ && !attempt_->is_scripted) end();
  if (!attempt_ && next.step - kStepsAhead <= step) begin_scripted(next);
  if (is_due) end();
}

// In a script, phases whose first step is still undecided come last.
void PlanSwitchController::set_phase_begin(std::int64_t begin) {
  for (ScriptedSwitch& one : script_) {
    if (one.is_phase && one.step == begin) return;
    if (one.step != kUndecidedStep) continue;
    one.step = begin;
    return;
  }
}

// A phase's plan was made for the machines with which the run started. If some of them were lost, or the run
// has switched to another plan, the run keeps its current layout and changes only the batch and the sequence
// length.
void PlanSwitchController::begin_scripted(const ScriptedSwitch& next) {
  const Plan& plan = next.plan;
  const bool is_on_scripted_plan =
      requested_plan_ == scripted_plan_ && num_devices(plan) <= facts_.comm.size();
  if (!next.is_phase || is_on_scripted_plan) return begin(plan, true, false, next.is_phase);
  begin(with_batch(part_.plan, plan.batch, plan.sequence_length), true, true, true);
}

void PlanSwitchController::begin_phase_with_present_plan() {
  const Plan& plan = script_[next_scripted_].plan;
  has_retried_ = true;
  begin(with_batch(part_.plan, plan.batch, plan.sequence_length), true, true, true);
  end();
}

void PlanSwitchController::begin(const Plan& plan, bool is_scripted, bool is_placed, bool is_phase) {
  const int number = ++num_attempts_;
  attempt_.emplace(Attempt{number, is_scripted, plan, {}});
  attempt_->prepared = std::async(std::launch::async, [this, plan, number, is_placed, is_phase] {
    return prepare(plan, number, is_placed, is_phase);
  });
}

// Connects the groups of the new plan while steps continue.
void PlanSwitchController::connect(Prepared& prepared) const {
  if (facts_.move.retains_old) prepared.change->retain_old_within(facts_.move.spare);
  if (const auto done = prepared.change->prepare(Deadline::after(kPrepareTimeout, "a plan's groups")); !done)
    prepared.why_not = text(done.error()), prepared.is_lost = true;
}

PlanSwitchController::Prepared PlanSwitchController::prepare(const Plan& plan, int number, bool is_placed,
                                                             bool is_phase) const {
  const auto began = std::chrono::steady_clock::now();
  Prepared result;
  try {
    SwitchContext facts = facts_;
    facts.move.retains_old = false;
    Feasible<std::unique_ptr<PlanSwitch>> change =
        PlanSwitch::create(facts, part_, plan, number, is_placed, is_phase);
    const std::optional<std::string> refusal = change ? refusal_(**change) : change.error().why;
    if (!refusal) {
      result.change = *std::move(change);
      connect(result);
    } else {
      result.why_not = *refusal;
    }
  } catch (const ReportedError& error) {  // this machine failed; the run continues on its plan
    result.why_not = error.what();
  } catch (const std::bad_alloc&) {
    result.why_not = "out of memory";
  }
  // Other ranks may have started to connect and would otherwise wait for this one.
  if (!result.why_not.empty() && !result.is_lost) facts_.comm.decline(number, result.why_not);
  result.seconds = Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  return result;
}

bool PlanSwitchController::begin_precopy() {
  if (attempt_->ready) return false;  // already tried
  const Prepared& own = attempt_->ready.emplace(take_prepared());
  const PlanSwitch* const change = own.why_not.empty() ? own.change.get() : nullptr;
  const PrecopyTerms terms = agree_on_precopy(facts_.comm, change, part_, facts_.move.timeout);
  if (terms.num_waves > 0) own.change->begin_precopy(terms, part_);
  return terms.num_waves > 0;
}

// If pre-copy has failed on this rank, the rank refuses the plan.
void PlanSwitchController::end_precopy() {
  if (!attempt_ || !attempt_->ready || attempt_->ready->change == nullptr) return;
  Prepared& own = *attempt_->ready;
  const std::string failure = own.change->end_precopy(part_);
  if (own.why_not.empty() && !failure.empty()) own.why_not = failure, own.is_lost = true;
}

void PlanSwitchController::begin_requested() {
  ++num_begun_;
  const bool is_placed = proposal_ && proposal_->is_placed;
  const std::string text =
      broadcast_text(0, request_ ? (is_placed ? "placed" : "") + plan_text(*request_->plan) : "");
  const bool has_placed_prefix = starts_with(text, "placed");
  begin(parse_plan(has_placed_prefix ? text.substr(6) : text, "the requested plan"), false,
        has_placed_prefix);
}

// Broadcasts a text of any length.
std::string PlanSwitchController::broadcast_text(int rank, const std::string& text) const {
  const Deadline deadline = Deadline::after(facts_.move.timeout, "a requested plan");
  const auto broadcast = [&](const at::Tensor& tensor) {
    throw_if_failed(facts_.comm.broadcast(kWorld, tensor, rank, "a plan")->wait(deadline));
  };
  at::Tensor size = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  broadcast(size);
  at::Tensor bytes = at::zeros({*size.const_data_ptr<std::int64_t>()}, at::kByte);
  auto* const data = reinterpret_cast<char*>(bytes.data_ptr<std::uint8_t>());
  if (facts_.comm.rank() == rank) std::memcpy(data, text.data(), text.size());
  if (bytes.numel() > 0) broadcast(bytes);
  return std::string(data, static_cast<std::size_t>(bytes.numel()));
}

std::string PlanSwitchController::first_refusal(const Prepared& own) const {
  const int rank = facts_.comm.rank(), size = facts_.comm.size();
  const int weight =
      (own.why_not.empty() ? 0 : size - rank) + (own.why_not.empty() || own.is_lost ? 0 : size);
  at::Tensor vote = at::full({1}, weight, at::kLong);
  throw_if_failed(facts_.comm.all_reduce(kWorld, vote, ReduceOp::maximum, "plan refusals")
                      ->wait(Deadline::after(facts_.move.timeout, "plan refusals")));
  const auto most = static_cast<int>(*vote.const_data_ptr<std::int64_t>());
  if (most == 0) return "";
  const int refusing_rank = most > size ? 2 * size - most : size - most;
  const std::string why = broadcast_text(refusing_rank, own.why_not);
  return size == 1 ? why : fmt::format("rank {}: {}", refusing_rank, why);
}

void PlanSwitchController::drop_earlier(int number) {
  if (dropping_.valid()) dropping_.wait();
  dropping_ = std::async(std::launch::async, [this, first = num_dropped_, number] {
    for (int epoch = first; epoch < number; ++epoch) facts_.comm.drop(epoch);
  });
  num_dropped_ = number;
}

// Drops the groups of a refused plan. All ranks have finished preparing, so no operation uses these groups.
void PlanSwitchController::drop_refused(int number) {
  if (dropping_.valid()) dropping_.wait();
  dropping_ = std::async(std::launch::async, [this, number] { facts_.comm.drop(number); });
}

// If a rank is lost during the move, no state is lost, provided that the remaining ranks have retained the
// old state or already have the complete new state.
SwitchReport PlanSwitchController::move(PlanSwitch& change) {
  is_moving_ = true;
  try {
    const SwitchReport report = change.run(part_);
    is_moving_ = false;
    return report;
  } catch (const PeersLost&) {
    has_moved_ = part_.plan == change.plan();
    earlier_ = std::move(change.earlier());
    is_moving_ = !has_moved_ && !change.retains_old();
    throw;
  }
}

SwitchOutcome PlanSwitchController::outcome_of(const Attempt& attempt, const Prepared& prepared) const {
  const bool is_phase = attempt.is_scripted && script_[next_scripted_].is_phase;
  SwitchOutcome outcome{.why_not = first_refusal(prepared),
                        .why = is_phase              ? phase_text(requested_plan_, attempt.plan)
                               : attempt.is_scripted ? "scripted"
                               : request_            ? request_->why
                                                     : "",
                        .is_phase = is_phase,
                        .proposal = attempt.is_scripted ? std::nullopt : proposal_,
                        .from = requested_plan_,
                        .to = attempt.plan,
                        .prepared = prepared.seconds};
  const bool is_provisional = outcome.proposal && outcome.proposal->is_provisional;
  if (!outcome.why_not.empty())
    outcome.kind = is_provisional ? SwitchOutcome::Kind::cancelled : SwitchOutcome::Kind::refused;
  return outcome;
}

void PlanSwitchController::end() {
  end_precopy();
  Prepared prepared = attempt_->ready ? std::move(*attempt_->ready) : take_prepared();
  const Attempt attempt = std::move(*attempt_);
  attempt_.reset();
  SwitchOutcome outcome = outcome_of(attempt, prepared);
  if (outcome.is_made()) {
    listener_.before_switch();
    outcome.report = move(*prepared.change);
    requested_plan_ = outcome.to;
    if (attempt.is_scripted) scripted_plan_ = outcome.to;
    drop_earlier(attempt.number);
  } else {
    prepared.change.reset();
    drop_refused(attempt.number);
  }
  const std::string line = listener_.switch_ended(outcome);
  if (outcome.is_phase && !outcome.is_made()) {
    if (has_retried_)
      throw UserError("the next training phase ({}) cannot start: {}", outcome.why, outcome.why_not);
    return begin_phase_with_present_plan();
  }
  if (attempt.is_scripted) ++next_scripted_, has_retried_ = false;
  if (!attempt.is_scripted && request_) {
    if (!proposal_) sources_->requests.write_answer(request_->name, {outcome.is_made(), line});
    request_.reset(), proposal_.reset();
  }
}

}  // namespace optimus
