// Implements the changes during a Training: another plan, another phase, or different ranks.
#include <chrono>
#include <cmath>

#include "base/file.h"
#include "cluster/standard.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "run/profile.h"
#include "run/rank_monitor.h"
#include "run/training.h"
#include "rundir/plan_files.h"
#include "settings/expected.h"
#include "settings/phases.h"

namespace optimus {
namespace {

// Returns the peak FLOP/s of GEMMs in this precision: the vendor's figure, or a measured one if the device
// type is unknown.
std::optional<double> peak_flops(at::Device device, Precision precision) {
  NullSink null_sink;  // the step predictor has already warned
  std::optional<DeviceType> type = find_type_by_vendor_name(device_name(device));
  if (!type) type = measured_type(type_name(device), null_sink);
  if (!type) return std::nullopt;
  const double peak = precision == Precision::bf16   ? type->peak.bf16
                      : precision == Precision::fp16 ? type->peak.fp16
                      : precision == Precision::fp8  ? type->peak.fp8
                      : precision == Precision::fp64 ? type->peak.fp64
                                                     : type->peak.fp32;
  return peak > 0 ? std::optional(peak) : std::nullopt;
}

}  // namespace

// Finishes a save in progress, because it belongs to the old plan, and drops the prefetched batch, because it
// has the old plan's order.
void Training::before_switch() {
  switch_begin_time_ = std::chrono::steady_clock::now();
  finish_saves();
  services_ = {};
}

void Training::finish_saves() {
  if (next_batch_.valid()) next_batch_.get();
  for (Saver* saver : {services_.saver.get(), services_.memory.get()})
    if (saver != nullptr) saver->take_result(true);
}

void Training::drop_part_services() {
  if (next_batch_.valid()) next_batch_.get();
  for (Saver* saver : {services_.saver.get(), services_.memory.get()})
    if (saver != nullptr) saver->end_writing();
  services_ = {};
}

void Training::resume_from(const TrainingState& state, std::int64_t epoch) {
  step_ = state.step, next_sample_ = state.num_samples, epoch_ = epoch, completed_state_ = state;
  adopt_state(state);
}

void Training::adopt_state(const TrainingState& state) {
  phase_begins_ = state.phase_begins;
  if (part_.is_empty()) return;
  Engine& engine = *part_.engine;
  peak_flops_ = peak_flops(engine.device(), part_.plan.precision);
  engine.num_updates = state.num_updates;
  engine.loss_scale = {state.loss_scale.value, state.loss_scale.num_good_steps};
  engine.set_fp8_history(state.fp8);
  engine.noise = state.noise;
  // If the run has not measured the noise so far, its first moments have weight 1 - beta1^n after n updates,
  // which is exact without clipping.
  if (state.noise.moment == 0)
    engine.noise.moment = 1 - std::pow(spec_.options.beta1, static_cast<double>(state.num_updates));
}

std::string Training::switch_ended(const SwitchOutcome& outcome) {
  if (companions_.monitor != nullptr) companions_.monitor->switch_ended(outcome, part_, step_);
  if (outcome.kind == SwitchOutcome::Kind::not_tried) return outcome.why_not;
  if (!outcome.is_made()) {
    const std::string line =
        fmt::format("step {}: plan {} → {} rejected: {}", step_, plan_hash(outcome.from).substr(0, 4),
                    plan_hash(outcome.to).substr(0, 4), outcome.why_not);
    if (companions_.records != nullptr && outcome.kind == SwitchOutcome::Kind::refused)
      rank_.events.report(Warning{line});
    return line;
  }
  adopt_new_plan();
  const Decision decision = decision_of(outcome);
  if (outcome.proposal) proposed_gain_ = outcome.proposal->predicted_gain;
  if (companions_.records != nullptr) {
    progress_.finish();
    report(decision, *companions_.records, rank_.line, rank_.events);
  }
  return text(decision);
}

void Training::adopt_new_plan() {
  ++epoch_;
  RealFileSystem files;
  if (companions_.records != nullptr) save_plan(files, spec_.settings.run, part_.plan, epoch_);
  services_ = hooks_.make_services(part_);
  if (part_.is_empty()) return;
  peak_flops_ = peak_flops(part_.engine->device(), part_.plan.precision);
  completed_state_ = state();  // a rank that the old plan did not use has not counted updates
}

Decision Training::decision_of(const SwitchOutcome& outcome) const {
  const std::chrono::duration<double> paused = std::chrono::steady_clock::now() - switch_begin_time_;
  Decision decision{.step = step_,
                    .kind = "switch",
                    .evidence = evidence_text(outcome),
                    .from = plan_hash(outcome.from),
                    .to = plan_hash(outcome.to),
                    .from_name = short_text(outcome.from),
                    .to_name = short_text(outcome.to),
                    .epoch = epoch_,
                    .step_seconds = step_seconds(),
                    .pause = Seconds(paused.count()),
                    .prepare = outcome.prepared,
                    .moved = outcome.report.moved,
                    .minimum = outcome.report.minimum,
                    .early = outcome.report.early,
                    .precopied = outcome.report.precopied};
  if (!outcome.proposal) return decision;
  decision.predicted_gain = outcome.proposal->predicted_gain;
  decision.payback_steps = outcome.proposal->payback_steps;
  decision.cause = outcome.proposal->cause, decision.findings = outcome.proposal->findings;
  decision.alternatives = outcome.proposal->alternatives;
  return decision;
}

// A new phase changes the training result, so the evidence includes the noise scale that triggered the phase.
std::string Training::evidence_text(const SwitchOutcome& outcome) const {
  if (!outcome.is_phase || !is_noise_ramp(spec_.options.batch_ramp) || part_.is_empty()) return outcome.why;
  const std::optional<double> noise = part_.engine->noise.samples();
  return noise ? fmt::format("{}, gradient noise scale {:.3g} samples", outcome.why, *noise) : outcome.why;
}

SurvivorState Training::survivor_state() {
  progress_.finish();
  SurvivorState survivor_state;
  survivor_state.state = completed_state_, survivor_state.epoch = epoch_;
  // completed_state_ lacks the counters if the old plan did not use this rank.
  if (const auto& counters = part_.counters) {
    survivor_state.state.num_updates = counters->num_updates, survivor_state.state.fp8 = counters->fp8;
    survivor_state.state.loss_scale = {counters->loss_scale.value, counters->loss_scale.num_good_steps};
    survivor_state.state.noise = counters->noise;
  }
  // A rank that the plan does not use has nothing to save, and a rank that is changing plans has no complete
  // state.
  survivor_state.is_torn =
      part_.parameters == nullptr || (companions_.switches != nullptr && companions_.switches->is_moving());
  if (survivor_state.is_torn || part_.engine == nullptr) return survivor_state;
  Engine& engine = *part_.engine;
  engine.release();
  if (engine.progress() == Engine::Progress::updating) finish_step({});
  survivor_state.state = completed_state_;
  survivor_state.is_torn = engine.progress() == Engine::Progress::torn;
  survivor_state.is_at_gate = engine.progress() == Engine::Progress::at_gate;
  survivor_state.gate = engine.gate_sums();
  return survivor_state;
}

void Training::finish_step(const std::vector<double>& gate) {
  last_metrics_ = metrics_of(part_.engine->finish_step(gate));
  decide_phase();
  completed_state_ = state();
}

// Called after every step. The decision depends only on values that all ranks of the plan share, so it does
// not matter which rank decides. Ranks that the plan does not use receive the decision through the step
// agreement.
void Training::decide_phase() {
  if (!is_noise_ramp(spec_.options.batch_ramp)) return;
  if (const auto begin =
          next_phase_start(spec_.settings.phases, phase_begins_, step_, part_.engine->noise.samples()))
    phase_begins_.push_back(*begin);
}

// Called on all ranks after the same step.
void Training::set_phase_begin(std::int64_t begin) {
  if (begin == 0) return;
  if (phase_begins_.empty() || phase_begins_.back() < begin) phase_begins_.push_back(begin);
  completed_state_.phase_begins = phase_begins_;
  if (companions_.switches != nullptr) companions_.switches->set_phase_begin(begin);
}

}  // namespace optimus
