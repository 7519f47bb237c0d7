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
    : facts_(facts),
      change_(change_plan(part.plan, to, facts.model, facts.comm.size())),
      epoch_(epoch),
      rank_(facts.comm.rank()),
      groups_{kAll} {
  ensure_engine_supports(change_.to, facts.model);
  if (has_device(change_.to, rank_)) {
    next_ =
        std::make_unique<Parameters>(change_.to, facts.model, rank_, facts.engine.device, Keeping::nothing);
    const std::vector<Group> own =
        groups_of(compile(change_.to, facts.model, rank_), change_.to, facts.comm.size());
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
  at::Tensor all = at::tensor(numbers, at::kDouble);
  done_or_throw(facts_.comm.all_reduce(kAll, all, Sum::maximum, "what engines count")
                    ->wait(Deadline::after(facts_.move.patience, "a change of plan")));
  const double* const found = all.const_data_ptr<double>();
  num_updates_ = std::llround(found[0]);
  loss_scale_ = {found[1], std::llround(found[2])};
}

void PlanSwitch::make_engine(PlanPart& part) const {
  EngineOptions options = facts_.engine;
  options.rank = rank_, options.comm = num_devices(change_.to) > 1 ? &facts_.comm : nullptr;
  part.engine = std::make_unique<Engine>(change_.to, facts_.model, *part.parameters, options);
  part.engine->num_updates = num_updates_, part.engine->loss_scale = loss_scale_;
  done_or_throw(part.engine->gather_weights());
}

SwitchReport PlanSwitch::sum_up(const MoveReport& own, Seconds paused) const {
  const Deadline deadline = Deadline::after(facts_.move.patience, "the end of a change of plan");
  at::Tensor moved = at::tensor({static_cast<double>(own.received.value)}, at::kDouble);
  at::Tensor most = at::tensor({static_cast<double>(mover_->most_held().value), paused.value}, at::kDouble);
  done_or_throw(facts_.comm.all_reduce(kAll, moved, Sum::sum, "bytes moved")->wait(deadline));
  done_or_throw(facts_.comm.all_reduce(kAll, most, Sum::maximum, "the pause")->wait(deadline));
  const auto bytes = [](double value) { return Bytes(std::llround(value)); };
  return {.moved = bytes(moved.item<double>()),
          .minimum = change_.minimum,
          .paused = Seconds(most.const_data_ptr<double>()[1]),
          .most_held = bytes(most.const_data_ptr<double>()[0])};
}

SwitchReport PlanSwitch::run(PlanPart& part) {
  const auto began = std::chrono::steady_clock::now();
  done_or_throw(
      facts_.comm.connect(epoch_, groups_, Deadline::after(facts_.move.patience, "connecting anew")));
  agree_on_numbers(part);
  part.engine.reset();
  if (part.parameters != nullptr) part.parameters->keep_state();
  const MoveReport moved = mover_->run();
  part.parameters = std::move(next_), part.plan = change_.to;
  if (part.parameters != nullptr) {
    part.parameters->complete();
    make_engine(part);
  }
  const Seconds paused(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
  return sum_up(moved, paused);
}

}  // namespace optimus
