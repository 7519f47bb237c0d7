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

const Group kAllRanks{Role::world, {}};
constexpr std::array kUpdateInputs = {StepScalar::learning_rate, StepScalar::is_finite, StepScalar::factor,
                                      StepScalar::rate, StepScalar::inverse_root};
constexpr std::size_t kNumCounts = 7;  // number of counters for updates, the loss scale and the noise scale
constexpr std::size_t kNumUpdateNumbers = 4 + kUpdateInputs.size();
constexpr int kProbeTag = 0x7fd3;  // not used by other messages
constexpr std::int64_t kProbeBytes = 1 << 18;
// Sending state early delays the switch by one step and needs an agreement and two more rounds of messages.
// It is worthwhile only if it saves more than this, which is how long these messages take on a slow machine.
constexpr Seconds kMinSaving{0.002};

double seconds_since(std::chrono::steady_clock::time_point begin_time) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count();
}

}  // namespace

Feasible<std::unique_ptr<PlanSwitch>> PlanSwitch::create(const SwitchContext& context, const PlanPart& part,
                                                         const Plan& to, int epoch, bool is_placed,
                                                         bool is_phase) {
  const AvailableRanks present_ranks{.num_ranks = context.comm.size(),
                                     .num_staying = context.comm.size(),
                                     .is_placed = is_placed,
                                     .is_phase = is_phase};
  Feasible<PlanChange> change = find_plan_change(part.plan, to, context.model, present_ranks);
  if (!change) return tl::unexpected(change.error());
  if (const auto reason = unsupported_reason(change->to, context.model)) return infeasible("{}", *reason);
  return std::unique_ptr<PlanSwitch>(new PlanSwitch(context, part, *std::move(change), present_ranks, epoch));
}

PlanSwitch::PlanSwitch(const SwitchContext& context, const PlanPart& part, const Plan& to,
                       const AvailableRanks& present_ranks)
    : PlanSwitch(context, part, change_plan(part.plan, to, context.model, present_ranks), present_ranks, 0) {}

PlanSwitch::PlanSwitch(const SwitchContext& context, const PlanPart& part, PlanChange change,
                       const AvailableRanks& present_ranks, int epoch)
    : context_(context),
      present_ranks_(present_ranks),
      change_(std::move(change)),
      epoch_(epoch),
      rank_(context.comm.rank()),
      groups_{kAllRanks} {
  if (has_device(change_.to, rank_)) {
    next_ = std::make_unique<Parameters>(change_.to, context.model, rank_, context.engine.device,
                                         StorageMode::nothing);
    const Program program = compile(change_.to, context.model, rank_);
    const MemoryUse use = memory_use(program);
    needed_bytes_ = use.weights + use.gradients + use.optimizer + plan_arena(program).bytes;
    const std::vector<Group> own = groups_of(program, change_.to, present_ranks_.num_staying);
    groups_.insert(groups_.end(), own.begin(), own.end());
  }
  mover_ = std::make_unique<StateMover>(change_, rank_, MoveEnds{part.parameters.get(), next_.get()},
                                        context_.comm, context_.move);
}

PlanSwitch::~PlanSwitch() = default;

void PlanSwitch::retain_old_within(Bytes spare) {
  const Bytes peak_without_old = mover_->peak_bytes();
  mover_->set_retains_old(true);
  context_.move.retains_old = mover_->peak_bytes() <= peak_without_old + spare;
  mover_->set_retains_old(context_.move.retains_old);
}

CommOutcome<void> PlanSwitch::prepare(const Deadline& deadline) {
  if (const auto done = context_.comm.prepare(epoch_, groups_, deadline); !done) return done;
  return measure_links(deadline);
}

// Measures link_speed_ with a ring exchange. The exchange runs twice, because the first round includes the
// wait for late ranks.
CommOutcome<void> PlanSwitch::measure_links(const Deadline& deadline) {
  Comm& comm = context_.comm;
  const bool needs_measurement = context_.move.early == PrecopyMode::automatic && comm.size() > 1 &&
                                 change_.moved.value > 0 && can_precopy(change_, context_.engine.device);
  if (!needs_measurement) return {};
  const at::Tensor out = at::zeros({kProbeBytes}, at::kByte), in = at::empty({kProbeBytes}, at::kByte);
  const int previous_rank = (rank_ + comm.size() - 1) % comm.size(), next_rank = (rank_ + 1) % comm.size();
  for (int round = 0; round < 2; ++round) {
    const auto begin_time = std::chrono::steady_clock::now();
    const auto send = comm.send_ahead(epoch_, next_rank, out, kProbeTag, "a link probe");
    const auto receive = comm.receive_ahead(epoch_, previous_rank, in, kProbeTag, "a link probe");
    for (Pending* const pending : {send.get(), receive.get()})
      if (const auto done = pending->wait(deadline); !done) return done;
    link_speed_ = kProbeBytes / std::max(1e-9, seconds_since(begin_time));
  }
  return {};
}

PlanSwitch::PrecopyVote PlanSwitch::precopy_vote(const PlanPart& part) const {
  if (context_.move.early == PrecopyMode::never || !can_precopy(change_, context_.engine.device)) return {};
  const Bytes used = part.is_empty() ? Bytes(0) : part.parameters->bytes() + part.engine->bytes();
  const Bytes available = std::max(Bytes(0), needed_bytes_ - used) + context_.move.spare;
  const std::size_t num_waves = mover_->num_precopy_waves(available);
  const double saved = static_cast<double>(mover_->bytes_saved_by_precopy(num_waves).value);
  const bool is_worth_it = context_.move.early == PrecopyMode::always
                               ? saved > 0
                               : link_speed_ > 0 && saved / link_speed_ > kMinSaving.value;
  return {is_worth_it, num_waves};
}

PrecopyTerms agree_on_precopy(Comm& comm, const PlanSwitch* own, const PlanPart& part, Seconds timeout) {
  const PlanSwitch::PrecopyVote vote = own == nullptr ? PlanSwitch::PrecopyVote{} : own->precopy_vote(part);
  const double num_updates = part.is_empty() ? -1 : static_cast<double>(part.engine->num_updates);
  at::Tensor values = at::tensor(
      {vote.is_worth_it ? 1.0 : 0.0, -static_cast<double>(vote.num_waves), num_updates}, at::kDouble);
  throw_if_failed(comm.all_reduce(kAllRanks, values, ReduceOp::maximum, "the pre-copy terms")
                      ->wait(Deadline::after(timeout, "the pre-copy terms")));
  const double* const maxima = values.const_data_ptr<double>();
  if (maxima[0] == 0 || own == nullptr) return {};
  return {.epoch = own->epoch(),
          .num_waves = static_cast<std::size_t>(std::llround(-maxima[1])),
          .num_updates = std::llround(maxima[2])};
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
  std::vector<double> counters(kNumCounts, kUnknown);
  if (!part.is_empty()) {
    const LossScale& scale = part.engine->loss_scale;
    const NoiseScale& noise = part.engine->noise;
    counters = {static_cast<double>(part.engine->num_updates),
                scale.value,
                static_cast<double>(scale.num_good_steps),
                noise.gradient,
                noise.noise,
                noise.moment,
                static_cast<double>(noise.num_steps)};
  }
  add_update(part, counters);
  add_history(part, counters);
  at::Tensor tensor = at::tensor(counters, at::kDouble);
  throw_if_failed(context_.comm.all_reduce(kAllRanks, tensor, ReduceOp::maximum, "the engine counters")
                      ->wait(Deadline::after(context_.move.timeout, "a plan change")));
  const double* const maxima = tensor.const_data_ptr<double>();
  // False if no rank has an engine. The counters are then read from the state.
  const bool is_known = maxima[0] >= 0;
  num_updates_ = is_known ? std::llround(maxima[0]) : -1;
  loss_scale_ = is_known ? LossScale{maxima[1], std::llround(maxima[2])} : LossScale{};
  noise_ = is_known ? NoiseScale{maxima[3], maxima[4], maxima[5], std::llround(maxima[6])} : NoiseScale{};
  const std::span<const double> other_values(maxima + kNumCounts,
                                             static_cast<std::size_t>(tensor.numel()) - kNumCounts);
  read_update(other_values.first(kNumUpdateNumbers));
  fp8_history_ = history_in(other_values.subspan(kNumUpdateNumbers));
}

// Appends the inputs of AdamW, all of which are non-negative.
void PlanSwitch::add_update(const PlanPart& part, std::vector<double>& numbers) const {
  std::vector<double> own(kNumUpdateNumbers, -1);
  if (!part.is_empty()) {
    const auto& [options, step_scalars] = part.engine->last_update();
    own = {options.beta1, options.beta2, options.epsilon, options.weight_decay};
    for (const StepScalar scalar : kUpdateInputs)
      own.push_back(step_scalars[static_cast<std::size_t>(scalar)]);
  }
  numbers.insert(numbers.end(), own.begin(), own.end());
}

void PlanSwitch::read_update(std::span<const double> numbers) {
  update_.options.beta1 = numbers[0], update_.options.beta2 = numbers[1];
  update_.options.epsilon = numbers[2], update_.options.weight_decay = numbers[3];
  for (std::size_t i = 0; i < kUpdateInputs.size(); ++i)
    update_.step_scalars[static_cast<std::size_t>(kUpdateInputs[i])] = numbers[4 + i];
}

// Appends the fp8 amax history: the number of steps, followed by the values of each step. The history is
// padded to the same length on every rank. Unknown values are -1.
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
  EngineOptions options = context_.engine;
  options.rank = rank_, options.comm = num_devices(change_.to) > 1 ? &context_.comm : nullptr;
  part.engine = std::make_unique<Engine>(change_.to, context_.model, *part.parameters, options);
  part.engine->num_updates = num_updates_, part.engine->loss_scale = loss_scale_;
  part.engine->noise = noise_;
  part.engine->set_fp8_history(fp8_history_);
  throw_if_failed(part.engine->gather_weights());
}

// Sums the report over all ranks. When this returns, all ranks have their complete new state.
SwitchReport PlanSwitch::summarize(const MoveReport& own) const {
  const Deadline deadline = Deadline::after(context_.move.timeout, "the end of a plan change");
  const auto as_double = [](Bytes bytes) { return static_cast<double>(bytes.value); };
  at::Tensor moved = at::tensor(
      {as_double(own.received), as_double(own.early), as_double(own.gradients_resent)}, at::kDouble);
  at::Tensor peak = at::tensor({static_cast<double>(mover_->peak_bytes().value)}, at::kDouble);
  const auto sum = context_.comm.all_reduce(kAllRanks, moved, ReduceOp::sum, "bytes moved");
  const auto maximum = context_.comm.all_reduce(kAllRanks, peak, ReduceOp::maximum, "peak bytes");
  throw_if_failed(sum->wait(deadline)), throw_if_failed(maximum->wait(deadline));
  const auto bytes = [](const at::Tensor& of, int index) {
    return Bytes(std::llround(of.const_data_ptr<double>()[index]));
  };
  return {.moved = bytes(moved, 0),
          .early = bytes(moved, 1),
          .precopied = bytes(moved, 2),
          .minimum = change_.minimum,
          .paused = {},
          .peak_bytes = bytes(peak, 0)};
}

SwitchReport PlanSwitch::run(PlanPart& part) {
  const auto begin_time = std::chrono::steady_clock::now();
  const auto connect = [&](std::span<const Group> groups) {
    throw_if_failed(context_.comm.connect(
        epoch_, groups, Deadline::after(context_.move.timeout, "connecting the new plan's groups")));
  };
  const bool are_ranks_leaving = present_ranks_.num_staying < present_ranks_.num_ranks;
  connect(are_ranks_leaving ? std::span(&kAllRanks, 1) : std::span<const Group>(groups_));
  agree_on_counters(part);
  part.engine.reset(), part.counters.reset();
  if (num_updates_ >= 0) part.counters = {num_updates_, loss_scale_, noise_, fp8_history_};
  if (has_precopy_) mover_->repeat_update(update_, num_updates_);
  if (part.parameters != nullptr) part.parameters->release_all_but_state();
  const MoveReport moved = mover_->run();
  if (context_.move.retains_old) earlier_ = {part.plan, std::move(part.parameters)};
  part.parameters = std::move(next_), part.plan = change_.to;
  SwitchReport report = summarize(moved);
  earlier_ = {};
  if (are_ranks_leaving) {
    context_.comm.shrink(present_ranks_.num_staying);
    if (rank_ >= present_ranks_.num_staying) return report;
    connect(groups_);
  }
  if (part.parameters != nullptr) {
    part.parameters->complete();
    make_engine(part);
  }
  part.counters.reset();
  report.paused = Seconds(seconds_since(begin_time));
  return report;
}

}  // namespace optimus
