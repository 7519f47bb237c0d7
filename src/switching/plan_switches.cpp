// Implements plan_switches.h.
#include "switching/plan_switches.h"

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

constexpr std::int64_t kStepsAhead = 3;  // how long before its step a scripted plan is prepared
constexpr Seconds kPatience{60};         // of preparing, for other ranks that do not connect
const Group kEveryone{Role::world, {}};

// The training task changes with a phase, which decisions record.
std::string phase_words(const Plan& from, const Plan& to) {
  return "phase: " + text(Phase{0, from.batch, from.sequence_length}, Phase{0, to.batch, to.sequence_length});
}

}  // namespace

PlanSwitches::PlanSwitches(SwitchFacts facts, PlanPart& part, std::vector<ScriptedSwitch> script,
                           std::optional<Outside> outside, std::function<void(const PlanSwitch&)> check)
    : facts_(std::move(facts)),
      part_(part),
      script_(std::move(script)),
      outside_(std::move(outside)),
      check_(std::move(check)),
      asked_(part.plan),
      scripted_(part.plan) {}

PlanSwitches::~PlanSwitches() {
  if (attempt_ && attempt_->prepared.valid()) attempt_->prepared.wait();
  end_early();
}

void PlanSwitches::let_go() {
  if (attempt_) facts_.comm.abandon("the training has failed");  // its thread may wait for other ranks
  end_early();
  for (int number = num_dropped_; number <= num_attempts_; ++number) facts_.comm.drop(number);
}

StepWord PlanSwitches::word() {
  if (outside_ && !attempt_ && num_asked_ == num_begun_) take_request();
  StepWord word{.ends = false, .asked = std::max(num_asked_, num_begun_), .prepared = num_attempts_};
  const bool is_preparing = attempt_ && !attempt_->ready &&
                            attempt_->prepared.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (is_held_back() || is_preparing) --word.prepared;
  if (drain_) word.drained = drain_->rank;
  return word;
}

void PlanSwitches::refuse_request(const std::string& why) {
  if (wish_)
    outside_->refused();
  else
    outside_->requests.answer(request_->name, {false, why});
  request_.reset(), wish_.reset();
}

// A confirmed finding stays confirmed: other ranks may have acted on it. A scripted plan or a request does
// not wait for a provisional finding.
bool PlanSwitches::is_held_back() {
  if (!attempt_ || attempt_->is_scripted || attempt_->ready || !wish_ || !wish_->is_provisional) return false;
  constexpr std::int64_t kSaid = 2;  // steps until all ranks have acted on a vote
  if (next_scripted_ < script_.size() && script_[next_scripted_].step - kStepsAhead - kSaid <= step_)
    return false;
  const ProvisionalStatus now = outside_->suspicion();
  if (now == ProvisionalStatus::confirmed) wish_->is_provisional = false;
  return now == ProvisionalStatus::open && !outside_->requests.is_somebody_waiting();
}

// A proposal whose finding is still provisional at the end is not carried out.
PlanSwitches::Prepared PlanSwitches::take_prepared() {
  Prepared prepared = attempt_->prepared.get();
  if (!attempt_->is_scripted && wish_ && wish_->is_provisional)
    prepared.why_not = "its reason no longer applies", prepared.is_lost = false;
  return prepared;
}

bool PlanSwitches::take_wish() {
  wish_ = outside_->wish();
  if (!wish_) return false;
  request_ = PlanRequest{"", wish_->plan, wish_->why};
  return true;
}

// Takes the next request if it concerns a plan.
bool PlanSwitches::take_next_request() {
  if (drain_) return false;
  std::optional<ControlRequest> next = outside_->requests.next();
  if (!next) return false;
  if (PlanRequest* const plan = std::get_if<PlanRequest>(&*next)) {
    request_ = std::move(*plan);
    return true;
  }
  const DrainRequest& drain = std::get<DrainRequest>(*next);
  const int size = facts_.comm.size();
  if (!outside_->can_drain)
    outside_->requests.answer(drain.name,
                              {false, "ranks cannot leave this run (--static, or a single process)"});
  else if (drain.rank >= size || size == 1)
    outside_->requests.answer(drain.name, {false, size == 1 ? "it is the last device"
                                                            : fmt::format("no device {}: devices are 0 to {}",
                                                                          drain.rank, size - 1)});
  else
    drain_ = outside_->requests.take(drain.name) ? std::optional(drain) : std::nullopt;
  return false;
}

// One request at a time. The planner runs while steps continue.
void PlanSwitches::take_request() {
  if (!request_ && !take_next_request() && (drain_ || !take_wish())) return;
  if (!request_->plan && !chosen_.valid()) chosen_ = std::async(std::launch::async, outside_->choose, asked_);
  if (!request_->plan) {
    if (chosen_.wait_for(std::chrono::seconds(0)) != std::future_status::ready) return;
    try {
      request_->plan = chosen_.get();
    } catch (const UserError& error) {
      return refuse_request(error.what());
    }
  }
  if (*request_->plan == asked_)
    return refuse_request(
        fmt::format("the run already uses plan {} ({})", plan_hash(asked_).substr(0, 4), short_text(asked_)));
  ++num_asked_;
}

void PlanSwitches::step_ended(std::int64_t step, const StepWord& agreed, const SwitchHooks& hooks) {
  step_ = step;
  const bool are_all_prepared = attempt_ && agreed.prepared == num_attempts_;
  if (are_all_prepared && !attempt_->is_scripted && !begin_early()) end(hooks);
  if (!attempt_ && agreed.asked > num_begun_) begin_asked();
  while (next_scripted_ < script_.size() && script_[next_scripted_].step < step) ++next_scripted_;
  if (next_scripted_ == script_.size()) return;
  const ScriptedSwitch& next = script_[next_scripted_];
  const bool is_due = next.step == step;
  if (are_all_prepared && attempt_ && attempt_->is_scripted && next.step == step + 1) begin_early();
  if (is_due && attempt_ && !attempt_->is_scripted) end(hooks);
  if (!attempt_ && next.step - kStepsAhead <= step) begin_scripted(next);
  if (is_due) end(hooks);
}

// Phases whose step is not yet decided are the last entries of a script.
void PlanSwitches::know_phase(std::int64_t begin) {
  for (ScriptedSwitch& one : script_) {
    if (one.is_phase && one.step == begin) return;
    if (one.step != kNotYet) continue;
    one.step = begin;
    return;
  }
}

// A phase's plan was made for the machines that the run began with: if some were lost, or the run has changed
// to another plan, it keeps its present layout with the new batch.
void PlanSwitches::begin_scripted(const ScriptedSwitch& next) {
  const Plan& plan = next.plan;
  const bool is_usual = asked_ == scripted_ && num_devices(plan) <= facts_.comm.size();
  if (!next.is_phase || is_usual) return begin(plan, true, false, next.is_phase);
  begin(with_batch(part_.plan, plan.batch, plan.sequence_length), true, true, true);
}

void PlanSwitches::begin_phase_as_it_is(const SwitchHooks& hooks) {
  const Plan& plan = script_[next_scripted_].plan;
  has_retried_ = true;
  begin(with_batch(part_.plan, plan.batch, plan.sequence_length), true, true, true);
  end(hooks);
}

void PlanSwitches::begin(const Plan& plan, bool is_scripted, bool is_placed, bool is_phase) {
  const int number = ++num_attempts_;
  attempt_.emplace(Attempt{number, is_scripted, plan, {}});
  attempt_->prepared = std::async(std::launch::async, [this, plan, number, is_placed, is_phase] {
    return prepare(plan, number, is_placed, is_phase);
  });
}

PlanSwitches::Prepared PlanSwitches::prepare(const Plan& plan, int number, bool is_placed,
                                             bool is_phase) const {
  const auto began = std::chrono::steady_clock::now();
  Prepared result;
  try {
    SwitchFacts facts = facts_;
    facts.move.keeps_old = false;
    result.change = std::make_unique<PlanSwitch>(facts, part_, plan, number, is_placed, is_phase);
    check_(*result.change);
    if (facts_.move.keeps_old) result.change->keep_old_within(facts_.move.spare);
    if (const auto done = result.change->prepare(Deadline::after(kPatience, "a plan's groups")); !done)
      result.why_not = text(done.error()), result.is_lost = true;
  } catch (const UserError& error) {
    result.why_not = error.what();
  } catch (const std::bad_alloc&) {
    result.why_not = "out of memory";
  }
  // Other ranks may have begun to connect, and would wait for this one.
  if (!result.why_not.empty() && !result.is_lost) facts_.comm.decline(number, result.why_not);
  result.seconds = Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  return result;
}

bool PlanSwitches::begin_early() {
  if (attempt_->ready) return false;  // already tried
  const Prepared& own = attempt_->ready.emplace(take_prepared());
  const PlanSwitch* const change = own.why_not.empty() ? own.change.get() : nullptr;
  const PrecopyTerms terms = agree_on_early(facts_.comm, change, part_, facts_.move.patience);
  if (terms.num_waves > 0) own.change->begin_early(terms, part_);
  return terms.num_waves > 0;
}

// A failure of pre-copy is a reason to refuse.
void PlanSwitches::end_early() {
  if (!attempt_ || !attempt_->ready || attempt_->ready->change == nullptr) return;
  Prepared& own = *attempt_->ready;
  const std::string failure = own.change->end_early(part_);
  if (own.why_not.empty() && !failure.empty()) own.why_not = failure, own.is_lost = true;
}

void PlanSwitches::begin_asked() {
  ++num_begun_;
  const bool is_placed = wish_ && wish_->is_placed;
  const std::string text =
      from_rank(0, request_ ? (is_placed ? "placed" : "") + plan_text(*request_->plan) : "");
  const bool says_placed = starts_with(text, "placed");
  begin(parse_plan(says_placed ? text.substr(6) : text, "the requested plan"), false, says_placed);
}

// Broadcasts a text of any length.
std::string PlanSwitches::from_rank(int rank, const std::string& text) const {
  const Deadline deadline = Deadline::after(facts_.move.patience, "a requested plan");
  const auto broadcast = [&](const at::Tensor& tensor) {
    done_or_throw(facts_.comm.broadcast(kEveryone, tensor, rank, "a plan")->wait(deadline));
  };
  at::Tensor size = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  broadcast(size);
  at::Tensor bytes = at::zeros({*size.const_data_ptr<std::int64_t>()}, at::kByte);
  auto* const data = reinterpret_cast<char*>(bytes.data_ptr<std::uint8_t>());
  if (facts_.comm.rank() == rank) std::memcpy(data, text.data(), text.size());
  if (bytes.numel() > 0) broadcast(bytes);
  return std::string(data, static_cast<std::size_t>(bytes.numel()));
}

std::string PlanSwitches::first_refusal(const Prepared& own) const {
  const int rank = facts_.comm.rank(), size = facts_.comm.size();
  const int weight =
      (own.why_not.empty() ? 0 : size - rank) + (own.why_not.empty() || own.is_lost ? 0 : size);
  at::Tensor word = at::full({1}, weight, at::kLong);
  done_or_throw(facts_.comm.all_reduce(kEveryone, word, Sum::maximum, "plan refusals")
                    ->wait(Deadline::after(facts_.move.patience, "plan refusals")));
  const auto most = static_cast<int>(*word.const_data_ptr<std::int64_t>());
  if (most == 0) return "";
  const int who = most > size ? 2 * size - most : size - most;
  const std::string why = from_rank(who, own.why_not);
  return size == 1 ? why : fmt::format("rank {}: {}", who, why);
}

void PlanSwitches::drop_earlier(int number) {
  if (dropping_.valid()) dropping_.wait();
  dropping_ = std::async(std::launch::async, [this, first = num_dropped_, number] {
    for (int epoch = first; epoch < number; ++epoch) facts_.comm.drop(epoch);
  });
  num_dropped_ = number;
}

// All ranks have finished preparing, and no operation uses its groups.
void PlanSwitches::drop_refused(int number) {
  if (dropping_.valid()) dropping_.wait();
  dropping_ = std::async(std::launch::async, [this, number] { facts_.comm.drop(number); });
}

// If a rank is lost meanwhile, no state is lost, provided that the others have retained the old state or
// already have all of the new one.
SwitchReport PlanSwitches::move(PlanSwitch& change) {
  is_moving_ = true;
  try {
    const SwitchReport report = change.run(part_);
    is_moving_ = false;
    return report;
  } catch (const PeersLost&) {
    has_moved_ = part_.plan == change.plan();
    earlier_ = std::move(change.earlier());
    is_moving_ = !has_moved_ && !change.keeps_old();
    throw;
  }
}

void PlanSwitches::end(const SwitchHooks& hooks) {
  end_early();
  Prepared prepared = attempt_->ready ? std::move(*attempt_->ready) : take_prepared();
  Attempt attempt = std::move(*attempt_);
  attempt_.reset();
  const bool is_phase = attempt.is_scripted && script_[next_scripted_].is_phase;
  SwitchEnd end{.why_not = first_refusal(prepared),
                .why = is_phase              ? phase_words(asked_, attempt.plan)
                       : attempt.is_scripted ? "scripted"
                       : request_            ? request_->why
                                             : "",
                .is_phase = is_phase,
                .wish = attempt.is_scripted ? std::nullopt : wish_,
                .from = asked_,
                .to = std::move(attempt.plan),
                .prepared = prepared.seconds};
  if (end.why_not.empty()) {
    hooks.let_go();
    end.report = move(*prepared.change);
    asked_ = end.to;
    if (attempt.is_scripted) scripted_ = end.to;
    drop_earlier(attempt.number);
  } else {
    prepared.change.reset();
    drop_refused(attempt.number);
  }
  const std::string line = hooks.done(end);
  if (is_phase && !end.why_not.empty()) {
    if (has_retried_)
      throw UserError("the next phase of the training ({}) cannot begin: {}", end.why, end.why_not);
    return begin_phase_as_it_is(hooks);
  }
  if (attempt.is_scripted) ++next_scripted_, has_retried_ = false;
  if (!attempt.is_scripted && request_) {
    if (!wish_) outside_->requests.answer(request_->name, {end.why_not.empty(), line});
    request_.reset(), wish_.reset();
  }
}

}  // namespace optimus
