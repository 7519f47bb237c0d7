// Implements the changes of a Training: another plan, another phase, or fewer ranks after a loss.
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

// Peak FLOP/s of GEMMs in this precision: the vendor's figure, or the measured one for an unknown device.
std::optional<double> peak_flops(at::Device device, Precision precision) {
  NullSink quiet;  // the step predictor has warned already
  std::optional<DeviceType> type = find_type_by_vendor_name(device_name(device));
  if (!type) type = measured_type(type_name(device), quiet);
  if (!type) return std::nullopt;
  const double peak = precision == Precision::bf16   ? type->peak.bf16
                      : precision == Precision::fp16 ? type->peak.fp16
                      : precision == Precision::fp8  ? type->peak.fp8
                      : precision == Precision::fp64 ? type->peak.fp64
                                                     : type->peak.fp32;
  return peak > 0 ? std::optional(peak) : std::nullopt;
}

// Rounds up, so that a part of a step is "1 step".
std::string steps_text(double steps) {
  const auto number = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(steps)));
  return fmt::format("{} step{}", number, number == 1 ? "" : "s");
}

}  // namespace

// Finishes a save in progress, which belongs to the old plan, and drops the prefetched batch, which is in
// the old plan's order.
void Training::release_part() {
  switch_began_ = std::chrono::steady_clock::now();
  finish_saves();
  services_ = {};
}

void Training::finish_saves() {
  if (next_.valid()) next_.get();
  for (Saver* saver : {services_.saver.get(), services_.memory.get()})
    if (saver != nullptr) saver->take_result(true);
}

void Training::drop_part_services() {
  if (next_.valid()) next_.get();
  for (Saver* saver : {services_.saver.get(), services_.memory.get()})
    if (saver != nullptr) saver->end_writing();
  services_ = {};
}

void Training::resume_from(const TrainingState& state, std::int64_t epoch) {
  step_ = state.step, next_sample_ = state.num_samples, epoch_ = epoch, done_ = state;
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
  // If the run did not measure noise so far, its first moments have the weight 1 - beta1^n after n updates,
  // which is exact without clipping.
  if (state.noise.moment == 0)
    engine.noise.moment = 1 - std::pow(options_.beta1, static_cast<double>(state.num_updates));
}

std::string Training::adopt_new_part(const SwitchOutcome& end, RunFolder* folder) {
  const std::string from = plan_hash(end.from), to = plan_hash(end.to);
  const std::string hashes = fmt::format("plan {} → {}", from.substr(0, 4), to.substr(0, 4));
  if (!end.why_not.empty()) {
    const std::string line = fmt::format("step {}: {} rejected: {}", step_, hashes, end.why_not);
    if (end.proposal && end.proposal->is_provisional && context_.monitor != nullptr)
      return context_.monitor->controller()->proposal_cancelled(), line;
    if (folder != nullptr) events_.report(Warning{line});
    if (end.proposal && context_.monitor != nullptr) context_.monitor->controller()->proposal_refused();
    return line;
  }
  ++epoch_;
  if (context_.monitor != nullptr) {
    context_.monitor->took(part_);
    if (AdaptationController* const controller = context_.monitor->controller())
      controller->plan_adopted(part_.plan, end.proposal, step_);
  }
  RealFileSystem files;
  if (folder != nullptr) save_plan(files, settings_.run, part_.plan, epoch_);
  services_ = hooks_.keep(part_);
  if (!part_.is_empty()) {
    peak_flops_ = peak_flops(part_.engine->device(), part_.plan.precision);
    done_ = state();  // a rank that had no part has not counted updates so far
  }
  const Seconds paused(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - switch_began_).count());
  const double steps = last_ ? paused.value / std::max(1e-9, last_->seconds.value) : 0;
  std::string line =
      fmt::format("step {}: {} ({} → {}), prepared {}, paused {} ({:.1f} steps), moved {} (minimum {})",
                  step_, hashes, short_text(end.from), short_text(end.to), text(end.prepared), text(paused),
                  steps, text(end.report.moved), text(end.report.minimum));
  if (end.proposal) {
    proposed_gain_ = end.proposal->predicted_gain;
    line = fmt::format("step {}: {}; switching to {} (expected {:+.0f} %, break-even after {}); {}", step_,
                       end.why, short_text(end.to), 100 * proposed_gain_,
                       steps_text(end.proposal->payback_steps), line.substr(line.find(": ") + 2));
  }
  const std::string why = evidence_text(end);
  if (end.is_phase) line = fmt::format("step {}: {}; {}", step_, why, line.substr(line.find(": ") + 2));
  if (end.report.early.value > 0)
    line +=
        fmt::format(", pre-copied {} ({} sent again)", text(end.report.early), text(end.report.precopied));
  if (folder == nullptr) return line;
  progress_.finish();
  line_.print(line);
  Decision decision{.step = step_,
                    .kind = "switch",
                    .evidence = why,
                    .from = from,
                    .to = to,
                    .epoch = epoch_,
                    .pause = paused,
                    .prepare = end.prepared,
                    .moved = end.report.moved,
                    .minimum = end.report.minimum,
                    .early = end.report.early,
                    .precopied = end.report.precopied};
  if (end.proposal)
    decision.predicted_gain = end.proposal->predicted_gain, decision.cause = end.proposal->cause,
    decision.alternatives = end.proposal->alternatives;
  const Outcome<void> kept = folder->decisions.append_line(decision_line(decision));
  if (!kept) events_.report(Warning{kept.error().why});
  return line;
}

// A new phase changes the training result, so the noise scale that led to it is added to the evidence.
std::string Training::evidence_text(const SwitchOutcome& end) const {
  if (!end.is_phase || !is_noise_ramp(options_.batch_ramp) || part_.is_empty()) return end.why;
  const std::optional<double> noise = part_.engine->noise.samples();
  return noise ? fmt::format("{}, gradient noise scale {:.3g} samples", end.why, *noise) : end.why;
}

SurvivorState Training::survivor_state() {
  progress_.finish();
  SurvivorState survivor_state;
  survivor_state.state = done_, survivor_state.epoch = epoch_;
  if (const auto& numbers = part_.numbers) {  // a rank without a part has not counted updates
    survivor_state.state.num_updates = numbers->num_updates, survivor_state.state.fp8 = numbers->fp8;
    survivor_state.state.loss_scale = {numbers->loss_scale.value, numbers->loss_scale.num_good_steps};
    survivor_state.state.noise = numbers->noise;
  }
  // A rank without a part in the plan has nothing to save, and a rank that is changing plans has no complete
  // state.
  survivor_state.is_torn =
      part_.parameters == nullptr || (context_.switches != nullptr && context_.switches->is_moving());
  if (survivor_state.is_torn || part_.engine == nullptr) return survivor_state;
  Engine& engine = *part_.engine;
  engine.release();
  if (engine.progress() == Engine::Progress::updating) follow({});
  survivor_state.state = done_;
  survivor_state.is_torn = engine.progress() == Engine::Progress::torn;
  survivor_state.is_at_gate = engine.progress() == Engine::Progress::at_gate;
  survivor_state.gate = engine.gate_sums();
  return survivor_state;
}

void Training::follow(const std::vector<double>& gate) {
  last_ = metrics_of(part_.engine->finish_step(gate));
  decide_phase();
  done_ = state();
}

// Called after every step. The decision depends only on values that all ranks of the plan share, so that
// the training result does not depend on which rank decides. Ranks without a part learn of it through the
// step agreement.
void Training::decide_phase() {
  if (!is_noise_ramp(options_.batch_ramp)) return;
  if (const auto begin =
          next_phase_start(settings_.phases, phase_begins_, step_, part_.engine->noise.samples()))
    phase_begins_.push_back(*begin);
}

// Called on all ranks after the same step.
void Training::set_phase_begin(std::int64_t begin) {
  if (begin == 0) return;
  if (phase_begins_.empty() || phase_begins_.back() < begin) phase_begins_.push_back(begin);
  done_.phase_begins = phase_begins_;
  if (context_.switches != nullptr) context_.switches->set_phase_begin(begin);
}

}  // namespace optimus
