// See plan_switch.h.
#include "reshard/plan_switch.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <chrono>

#include "base/error.h"
#include "schedule/program.h"

namespace optimus {
namespace {

const Group kAll{Role::world, {}};

}  // namespace

PlanSwitch::PlanSwitch(const SwitchFacts& facts, const PlanPart& part, const Plan& to, int epoch)
    : PlanSwitch(facts, part, to, {.num_ranks = facts.comm.size(), .num_staying = facts.comm.size()}, epoch) {
}

PlanSwitch::PlanSwitch(const SwitchFacts& facts, const PlanPart& part, const Plan& to,
                       const RanksThere& there)
    : PlanSwitch(facts, part, to, there, 0) {}

PlanSwitch::PlanSwitch(const SwitchFacts& facts, const PlanPart& part, const Plan& to,
                       const RanksThere& there, int epoch)
    : facts_(facts),
      there_(there),
      change_(change_plan(part.plan, to, facts.model, there)),
      epoch_(epoch),
      rank_(facts.comm.rank()),
      groups_{kAll} {
  ensure_engine_supports(change_.to, facts.model);
  if (has_device(change_.to, rank_)) {
    next_ =
        std::make_unique<Parameters>(change_.to, facts.model, rank_, facts.engine.device, Keeping::nothing);
    const std::vector<Group> own =
        groups_of(compile(change_.to, facts.model, rank_), change_.to, there_.num_staying);
    groups_.insert(groups_.end(), own.begin(), own.end());
  }
  mover_ = std::make_unique<StateMover>(change_, rank_, MoveEnds{part.parameters.get(), next_.get()},
                                        facts_.comm, facts_.move);
}

PlanSwitch::~PlanSwitch() = default;

CommOutcome<void> PlanSwitch::prepare(const Deadline& deadline) {
  return facts_.comm.prepare(epoch_, groups_, deadline);
}

void PlanSwitch::agree_on_numbers(const PlanPart& part) {
  std::vector<double> numbers(3, -1);
  if (!part.is_empty())
    numbers = {static_cast<double>(part.engine->num_updates), part.engine->loss_scale.value,
               static_cast<double>(part.engine->loss_scale.num_good)};
  add_history(part, numbers);
  at::Tensor all = at::tensor(numbers, at::kDouble);
  done_or_throw(facts_.comm.all_reduce(kAll, all, Sum::maximum, "what engines count")
                    ->wait(Deadline::after(facts_.move.patience, "a change of plan")));
  const double* const found = all.const_data_ptr<double>();
  num_updates_ = std::llround(found[0]);
  loss_scale_ = {found[1], std::llround(found[2])};
  fp8_history_ = history_in({found + 3, static_cast<std::size_t>(all.numel() - 3)});
}

// Steps of maxima one behind the other, and how many they are: as many numbers on every rank, -1 where nothing is known.
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
  part.engine->set_fp8_history(fp8_history_);
  done_or_throw(part.engine->gather_weights());
}

// Whoever gets through this knows that all have all that they are to have.
SwitchReport PlanSwitch::sum_up(const MoveReport& own) const {
  const Deadline deadline = Deadline::after(facts_.move.patience, "the end of a change of plan");
  at::Tensor moved = at::tensor({static_cast<double>(own.received.value)}, at::kDouble);
  at::Tensor most = at::tensor({static_cast<double>(mover_->most_held().value)}, at::kDouble);
  const auto sum = facts_.comm.all_reduce(kAll, moved, Sum::sum, "bytes moved");
  const auto maximum = facts_.comm.all_reduce(kAll, most, Sum::maximum, "bytes held");
  done_or_throw(sum->wait(deadline)), done_or_throw(maximum->wait(deadline));
  const auto bytes = [](const at::Tensor& value) { return Bytes(std::llround(value.item<double>())); };
  return {.moved = bytes(moved), .minimum = change_.minimum, .paused = {}, .most_held = bytes(most)};
}

SwitchReport PlanSwitch::run(PlanPart& part) {
  const auto began = std::chrono::steady_clock::now();
  const auto connect = [&](std::span<const Group> groups) {
    done_or_throw(
        facts_.comm.connect(epoch_, groups, Deadline::after(facts_.move.patience, "connecting anew")));
  };
  const bool do_some_leave = there_.num_staying < there_.num_ranks;
  connect(do_some_leave ? std::span(&kAll, 1) : std::span<const Group>(groups_));
  agree_on_numbers(part);
  part.engine.reset();
  if (part.parameters != nullptr) part.parameters->keep_state();
  const MoveReport moved = mover_->run();
  if (facts_.move.keeps_old) earlier_ = {part.plan, std::move(part.parameters), nullptr};
  part.parameters = std::move(next_), part.plan = change_.to;
  SwitchReport report = sum_up(moved);
  earlier_ = {};
  if (do_some_leave) {
    facts_.comm.shrink(there_.num_staying);
    if (rank_ >= there_.num_staying) return report;
    connect(groups_);
  }
  if (part.parameters != nullptr) {
    part.parameters->complete();
    make_engine(part);
  }
  report.paused = Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  return report;
}

}  // namespace optimus
