// Implements rank_monitor.h.
#include "run/rank_monitor.h"

#include "switching/memory.h"
#include "switching/probe.h"

namespace optimus {

namespace {

std::unique_ptr<DeviceSensor> sensor_of(at::Device device) {
  const std::optional<std::string> address = bus_id(device);
  return address ? DeviceSensor::open(*address) : nullptr;
}

}  // namespace

RankMonitor::RankMonitor(Facts facts, const PlanPart& part)
    : facts_(std::move(facts)),
      tree_(facts_.comm, facts_.timeout),
      sensor_(sensor_of(facts_.device)),
      last_collection_(std::chrono::steady_clock::now()) {
  monitor_part(part);
}

void RankMonitor::monitor_part(const PlanPart& part) {
  meter_.reset(), log_.reset(), is_due_ = true;
  if (part.is_empty()) return;
  const Program& program = part.engine->program();
  meter_.emplace(program, part.plan, facts_.model, facts_.predicted_times(part.plan, program));
  if (!facts_.device.is_cuda())
    log_.emplace(facts_.device);
  else if (num_devices(part.plan) > 1)
    log_.emplace(facts_.device, TimingSelection{computing_spans(program, facts_.model), meter_->messages()});
}

void RankMonitor::switch_ended(const SwitchOutcome& outcome, const PlanPart& part, std::int64_t step) {
  AdaptationController* const controller = facts_.controller;
  switch (outcome.kind) {
    case SwitchOutcome::Kind::made:
      monitor_part(part);
      if (controller != nullptr) controller->plan_adopted(part.plan, outcome.proposal, step);
      return;
    case SwitchOutcome::Kind::refused:
    case SwitchOutcome::Kind::not_tried:
      if (controller != nullptr && outcome.proposal) controller->proposal_refused();
      return;
    case SwitchOutcome::Kind::cancelled:
      if (controller != nullptr) controller->proposal_cancelled();
      return;
  }
}

void RankMonitor::begin_step(Engine& engine) {
  if (!log_ || engine.instruction_log != nullptr || !is_due_) return;
  engine.instruction_log = &*log_;
  // CUDA event times are float milliseconds since this call, so a recent start keeps them precise.
  if (facts_.device.is_cuda()) log_->begin_times();
}

void RankMonitor::end_step(Engine& engine, const MeasuredStep& step) {
  const bool is_own = log_ && engine.instruction_log == &*log_;
  if (is_own) engine.instruction_log = nullptr, is_due_ = !facts_.device.is_cuda();
  if (meter_) meter_->observe(step, is_own ? log_->take() : std::vector<InstructionTime>());
}

void RankMonitor::collect(std::int64_t step) {
  is_due_ = true;
  Observation own_observation{.step = step};
  if (meter_ && !meter_->is_empty()) {
    RankStep mean = meter_->take();
    const auto reading = sensor_ == nullptr ? std::nullopt : sensor_->read();
    if (reading) mean.clock = reading->clock, mean.idle = reading->idle;
    if (const auto memory = resident_memory(facts_.device))
      mean.memory = memory->in_use, mean.memory_limit = memory->limit;
    own_observation.add(mean);
  }
  const std::optional<Observation> merged = tree_.send(std::move(own_observation));
  if (!merged || facts_.controller == nullptr) return;
  facts_.controller->observe(*merged);
  if (facts_.record) facts_.record(*merged, facts_.controller->findings());
}

void RankMonitor::probe() {
  AdaptationController* const controller = facts_.controller;
  ProbeSettings settings;
  if (controller != nullptr) settings = {controller->node_of_ranks(), controller->probe_request()};
  const ProbeResult result = optimus::probe(facts_.comm, settings, facts_.device, facts_.timeout);
  if (controller != nullptr) controller->probe_completed(result);
}

bool RankMonitor::wants_to_collect() {
  constexpr std::chrono::milliseconds kMinInterval{100};
  const auto now = std::chrono::steady_clock::now();
  if (facts_.comm.rank() != 0 || now - last_collection_ < kMinInterval) return false;
  last_collection_ = now;
  return true;
}

}  // namespace optimus
