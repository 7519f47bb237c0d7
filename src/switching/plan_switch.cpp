// Implements plan_switch.h.
#include "switching/plan_switch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <limits>

#include "base/error.h"
#include "schedule/program.h"

namespace optimus {
namespace {

const Group kAll{Role::world, {}};
constexpr std::array kUpdateInputs = {StepScalar::learning_rate, StepScalar::is_finite, StepScalar::factor,
                                      StepScalar::rate, StepScalar::inverse_root};
constexpr std::size_t kNumCounts = 7;  // number of counters: updates, the loss scale, the noise scale
constexpr std::size_t kNumUpdateNumbers = 4 + kUpdateInputs.size();
constexpr int kProbeTag = 0x7fd3;  // not used by other messages
constexpr std::int64_t kProbeBytes = 1 << 18;
// The duration of the agreement and two more rounds of messages on a slow machine. Sending state early
// delays the switch by one step, which is not worth it if it saves less than this.
constexpr Seconds kMinSaving{0.002};

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

Feasible<std::unique_ptr<PlanSwitch>> PlanSwitch::create(const SwitchContext& facts, const PlanPart& part,
                                                         const Plan& to, int epoch, bool is_placed,
                                                         bool is_phase) {
  const AvailableRanks present_ranks{.num_ranks = facts.comm.size(),
                                     .num_staying = facts.comm.size(),
                                     .is_placed = is_placed,
                                     .is_phase = is_phase};
  Feasible<PlanChange> change = find_plan_change(part.plan, to, facts.model, present_ranks);
  if (!change) return tl::unexpected(change.error());
  if (const auto reason = unsupported_reason(change->to, facts.model)) return infeasible("{}", *reason);
  return std::unique_ptr<PlanSwitch>(new PlanSwitch(facts, part, *std::move(change), present_ranks, epoch));
}

PlanSwitch::PlanSwitch(const SwitchContext& facts, const PlanPart& part, const Plan& to,
                       const AvailableRanks& present_ranks)
    : PlanSwitch(facts, part, change_plan(part.plan, to, facts.model, present_ranks), present_ranks, 0) {}

PlanSwitch::PlanSwitch(const SwitchContext& facts, const PlanPart& part, PlanChange change,
                       const AvailableRanks& present_ranks, int epoch)
    : facts_(facts),
      present_ranks_(present_ranks),
      change_(std::move(change)),
      epoch_(epoch),
      rank_(facts.comm.rank()),
      groups_{kAll} {
  if (has_device(change_.to, rank_)) {
    next_ = std::make_unique<Parameters>(change_.to, facts.model, rank_, facts.engine.device,
                                         StorageMode::nothing);
    const Program program = compile(change_.to, facts.model, rank_);
    const MemoryUse use = memory_use(program);
    needed_bytes_ = use.weights + use.gradients + use.optimizer + plan_arena(program).bytes;
    const std::vector<Group> own = groups_of(program, change_.to, present_ranks_.num_staying);
    groups_.insert(groups_.end(), own.begin(), own.end());
  }
  mover_ = std::make_unique<StateMover>(change_, rank_, MoveEnds{part.parameters.get(), next_.get()},
                                        facts_.comm, facts_.move);
}

PlanSwitch::~PlanSwitch() = default;

void PlanSwitch::retain_old_within(Bytes spare) {
  const Bytes without = mover_->peak_bytes();
  mover_->set_retains_old(true);
  facts_.move.retains_old = mover_->peak_bytes() <= without + spare;
  mover_->set_retains_old(facts_.move.retains_old);
}

CommOutcome<void> PlanSwitch::prepare(const Deadline& deadline) {
  if (const auto done = facts_.comm.prepare(epoch_, groups_, deadline); !done) return done;
  return measure_links(deadline);
}

// Measures link_speed_ by a ring exchange. It is done twice, because the first round includes waiting for
// late ranks.
CommOutcome<void> PlanSwitch::measure_links(const Deadline& deadline) {
  Comm& comm = facts_.comm;
  const bool is_wanted = facts_.move.early == PrecopyMode::automatic && comm.size() > 1 &&
                         change_.moved.value > 0 && can_precopy(change_, facts_.engine.device);
  if (!is_wanted) return {};
  const at::Tensor out = at::zeros({kProbeBytes}, at::kByte), in = at::empty({kProbeBytes}, at::kByte);
  const int previous_rank = (rank_ + comm.size() - 1) % comm.size(), behind = (rank_ + 1) % comm.size();
  for (int round = 0; round < 2; ++round) {
    const auto began = std::chrono::steady_clock::now();
    const auto send = comm.send_ahead(epoch_, behind, out, kProbeTag, "a link probe");
    const auto receive = comm.receive_ahead(epoch_, previous_rank, in, kProbeTag, "a link probe");
    for (Pending* const pending : {send.get(), receive.get()})
      if (const auto done = pending->wait(deadline); !done) return done;
    link_speed_ = kProbeBytes / std::max(1e-9, seconds_since(began));
  }
  return {};
}

PlanSwitch::PrecopyVote PlanSwitch::precopy_vote(const PlanPart& part) const {
  if (facts_.move.early == PrecopyMode::never || !can_precopy(change_, facts_.engine.device)) return {};
  const Bytes used = part.is_empty() ? Bytes(0) : part.parameters->bytes() + part.engine->bytes();
  const Bytes room = std::max(Bytes(0), needed_bytes_ - used) + facts_.move.spare;
  const std::size_t num_waves = mover_->num_precopy_waves(room);
  const double saved = static_cast<double>(mover_->bytes_saved_by_precopy(num_waves).value);
  const bool is_worth_it = facts_.move.early == PrecopyMode::always
                               ? saved > 0
                               : link_speed_ > 0 && saved / link_speed_ > kMinSaving.value;
  return {is_worth_it, num_waves};
}

PrecopyTerms agree_on_precopy(Comm& comm, const PlanSwitch* own, const PlanPart& part, Seconds timeout) {
  const PlanSwitch::PrecopyVote vote = own == nullptr ? PlanSwitch::PrecopyVote{} : own->precopy_vote(part);
  const double num_updates = part.is_empty() ? -1 : static_cast<double>(part.engine->num_updates);
  at::Tensor all = at::tensor(
      {vote.is_worth_it ? 1.0 : 0.0, -static_cast<double>(vote.num_waves), num_updates}, at::kDouble);
  throw_if_failed(comm.all_reduce(kAll, all, ReduceOp::maximum, "the pre-copy terms")
                      ->wait(Deadline::after(timeout, "the pre-copy terms")));
  const double* const found = all.const_data_ptr<double>();
  if (found[0] == 0 || own == nullptr) return {};
  return {.epoch = own->epoch(),
          .num_waves = static_cast<std::size_t>(std::llround(-found[1])),
          .num_updates = std::llround(found[2])};
}

void PlanSwitch::begin_precopy(const PrecopyTerms& terms, PlanPart& part) {
  has_precopy_ = true;
  mover_->begin_precopy(terms);
  if (!part.is_empty()) part.engine->before_updates = [this] { mover_->close_precopy(); };
}

std::string PlanSwitch::end_precopy(PlanPart& part) {
  if (!part.is_empty()) part.engine->before_updates = nullptr;
  return mover_->end_precopy();
}

void PlanSwitch::agree_on_counters(const PlanPart& part) {
  constexpr double kUnknown = -std::numeric_limits<double>::infinity();
  std::vector<double> numbers(kNumCounts, kUnknown);
  if (!part.is_empty()) {
    const LossScale& scale = part.engine->loss_scale;
    const NoiseScale& noise = part.engine->noise;
    numbers = {static_cast<double>(part.engine->num_updates),
               scale.value,
               static_cast<double>(scale.num_good_steps),
               noise.gradient,
               noise.noise,
               noise.moment,
               static_cast<double>(noise.num_steps)};
  }
  add_update(part, numbers);
  add_history(part, numbers);
  at::Tensor all = at::tensor(numbers, at::kDouble);
  throw_if_failed(facts_.comm.all_reduce(kAll, all, ReduceOp::maximum, "the engine counters")
                      ->wait(Deadline::after(facts_.move.timeout, "a plan change")));
  const double* const found = all.const_data_ptr<double>();
  // If false, no rank has an engine, and the counters are read from the state.
  const bool is_known = found[0] >= 0;
  num_updates_ = is_known ? std::llround(found[0]) : -1;
  loss_scale_ = is_known ? LossScale{found[1], std::llround(found[2])} : LossScale{};
  noise_ = is_known ? NoiseScale{found[3], found[4], found[5], std::llround(found[6])} : NoiseScale{};
  const std::span<const double> rest(found + kNumCounts, static_cast<std::size_t>(all.numel()) - kNumCounts);
  take_update(rest.first(kNumUpdateNumbers));
  fp8_history_ = history_in(rest.subspan(kNumUpdateNumbers));
}

// Appends the numbers that AdamW reads; all are at least 0.
void PlanSwitch::add_update(const PlanPart& part, std::vector<double>& numbers) const {
  std::vector<double> own(kNumUpdateNumbers, -1);
  if (!part.is_empty()) {
    const auto& [options, of_step] = part.engine->last_update();
    own = {options.beta1, options.beta2, options.epsilon, options.weight_decay};
    for (const StepScalar which : kUpdateInputs) own.push_back(of_step[static_cast<std::size_t>(which)]);
  }
  numbers.insert(numbers.end(), own.begin(), own.end());
}

void PlanSwitch::take_update(std::span<const double> numbers) {
  update_.options.beta1 = numbers[0], update_.options.beta2 = numbers[1];
  update_.options.epsilon = numbers[2], update_.options.weight_decay = numbers[3];
  for (std::size_t i = 0; i < kUpdateInputs.size(); ++i)
    update_.numbers[static_cast<std::size_t>(kUpdateInputs[i])] = numbers[4 + i];
}

// Appends the fp8 amax history: the number of steps, then the values of each step, padded to the same
// length on every rank; -1 where a value is unknown.
void PlanSwitch::add_history(const PlanPart& part, std::vector<double>& numbers) const {
  if (!has_fp8(change_.to)) return;
  const auto first = std::ssize(numbers);
  numbers.resize(
      numbers.size() + 1 + static_cast<std::size_t>(change_.to.fp8.window * num_fp8_slots(change_.to)), -1);
  if (part.is_empty()) return;
  const Fp8History history = part.engine->fp8_history();
  numbers[static_cast<std::size_t>(first)] = static_cast<double>(history.steps.size());
  auto at = numbers.begin() + first + 1;
  for (const std::vector<float>& step : history.steps) at = std::copy(step.begin(), step.end(), at);
}

Fp8History PlanSwitch::history_in(std::span<const double> numbers) const {
  Fp8History history;
  if (numbers.empty()) return history;
  const auto num_slots = static_cast<std::size_t>(num_fp8_slots(change_.to));
  for (std::size_t step = 0; step < static_cast<std::size_t>(std::llround(numbers[0])); ++step) {
    const std::span<const double> maxima = numbers.subspan(1 + step * num_slots, num_slots);
    history.steps.emplace_back(maxima.begin(), maxima.end());
  }
  return history;
}

void PlanSwitch::make_engine(PlanPart& part) const {
  EngineOptions options = facts_.engine;
  options.rank = rank_, options.comm = num_devices(change_.to) > 1 ? &facts_.comm : nullptr;
  part.engine = std::make_unique<Engine>(change_.to, facts_.model, *part.parameters, options);
  part.engine->num_updates = num_updates_, part.engine->loss_scale = loss_scale_;
  part.engine->noise = noise_;
  part.engine->set_fp8_history(fp8_history_);
  throw_if_failed(part.engine->gather_weights());
}

// Sums the report over all ranks. When this returns, all ranks have their complete new state.
SwitchReport PlanSwitch::summarize(const MoveReport& own) const {
  const Deadline deadline = Deadline::after(facts_.move.timeout, "the end of a plan change");
  const auto number = [](Bytes bytes) { return static_cast<double>(bytes.value); };
  at::Tensor moved =
      at::tensor({number(own.received), number(own.early), number(own.gradients_resent)}, at::kDouble);
  at::Tensor most = at::tensor({static_cast<double>(mover_->peak_bytes().value)}, at::kDouble);
  const auto sum = facts_.comm.all_reduce(kAll, moved, ReduceOp::sum, "bytes moved");
  const auto maximum = facts_.comm.all_reduce(kAll, most, ReduceOp::maximum, "peak bytes");
  throw_if_failed(sum->wait(deadline)), throw_if_failed(maximum->wait(deadline));
  const auto bytes = [](const at::Tensor& of, int index) {
    return Bytes(std::llround(of.const_data_ptr<double>()[index]));
  };
  return {.moved = bytes(moved, 0),
          .early = bytes(moved, 1),
          .precopied = bytes(moved, 2),
          .minimum = change_.minimum,
          .paused = {},
          .peak_bytes = bytes(most, 0)};
}

SwitchReport PlanSwitch::run(PlanPart& part) {
  const auto began = std::chrono::steady_clock::now();
  const auto connect = [&](std::span<const Group> groups) {
    throw_if_failed(facts_.comm.connect(
        epoch_, groups, Deadline::after(facts_.move.timeout, "connecting the new plan's groups")));
  };
  const bool are_ranks_leaving = present_ranks_.num_staying < present_ranks_.num_ranks;
  connect(are_ranks_leaving ? std::span(&kAll, 1) : std::span<const Group>(groups_));
  agree_on_counters(part);
  part.engine.reset(), part.numbers.reset();
  if (num_updates_ >= 0) part.numbers = {num_updates_, loss_scale_, noise_, fp8_history_};
  if (has_precopy_) mover_->repeat_update(update_, num_updates_);
  if (part.parameters != nullptr) part.parameters->release_all_but_state();
  const MoveReport moved = mover_->run();
  if (facts_.move.retains_old) earlier_ = {part.plan, std::move(part.parameters)};
  part.parameters = std::move(next_), part.plan = change_.to;
  SwitchReport report = summarize(moved);
  earlier_ = {};
  if (are_ranks_leaving) {
    facts_.comm.shrink(present_ranks_.num_staying);
    if (rank_ >= present_ranks_.num_staying) return report;
    connect(groups_);
  }
  if (part.parameters != nullptr) {
    part.parameters->complete();
    make_engine(part);
  }
  part.numbers.reset();
  report.paused = Seconds(seconds_since(began));
  return report;
}

}  // namespace optimus
