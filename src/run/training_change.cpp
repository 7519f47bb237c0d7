// Implements the changes of a Training: another plan, another phase, or fewer ranks after a loss.
#include <chrono>
#include <cmath>

#include "base/file.h"
#include "cluster/standard.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "run/profile.h"
#include "run/training.h"
#include "run/watching.h"
#include "rundir/plan_files.h"
#include "settings/expected.h"
#include "settings/phases.h"

namespace optimus {
namespace {

// Peak FLOP/s of GEMMs in this precision: the vendor's figure, or the measured one for an unknown device.
std::optional<double> peak_flops(at::Device device, Precision precision) {
  NullSink quiet;  // the step predictor has warned already
  std::optional<DeviceType> type = find_type_in(device_name(device));
  if (!type) type = measured_type(type_name(device), quiet);
  if (!type) return std::nullopt;
  const double peak = precision == Precision::bf16   ? type->peak.bf16
                      : precision == Precision::fp16 ? type->peak.fp16
                      : precision == Precision::fp8  ? type->peak.fp8
                      : precision == Precision::fp64 ? type->peak.fp64
                                                     : type->peak.fp32;
  return peak > 0 ? std::optional(peak) : std::nullopt;
}

// Rounds up: part of a step is "1 step".
std::string steps_text(double steps) {
  const auto number = std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(steps)));
  return fmt::format("{} step{}", number, number == 1 ? "" : "s");
}

}  // namespace

// A save in progress belongs to the old plan, and a prefetched batch is in its order.
void Training::let_go_of_part() {
  switch_began_ = std::chrono::steady_clock::now();
  finish_saves();
  keepers_ = {};
}

void Training::finish_saves() {
  if (next_.valid()) next_.get();
  for (Saver* saver : {keepers_.saver.get(), keepers_.memory.get()})
    if (saver != nullptr) saver->take_ended(true);
}

void Training::drop_part_keepers() {
  if (next_.valid()) next_.get();
  for (Saver* saver : {keepers_.saver.get(), keepers_.memory.get()})
    if (saver != nullptr) saver->end_writing();
  keepers_ = {};
}

void Training::go_on_from(const TrainingState& state, std::int64_t epoch) {
  step_ = state.step, next_sample_ = state.num_samples, epoch_ = epoch, done_ = state;
  take_state(state);
}

void Training::take_state(const TrainingState& state) {
  phase_begins_ = state.phase_begins;
  if (part_.is_empty()) return;
  Engine& engine = *part_.engine;
  peak_flops_ = peak_flops(engine.device(), part_.plan.precision);
  engine.num_updates = state.num_updates;
  engine.loss_scale = {state.loss_scale.value, state.loss_scale.num_good};
  engine.set_fp8_history(state.fp8);
  engine.noise = state.noise;
  // Moments of a run that did not measure noise get the weight that they would have without clipping.
  if (state.noise.moment == 0)
    engine.noise.moment = 1 - std::pow(options_.beta1, static_cast<double>(state.num_updates));
}

std::string Training::take_new_part(const SwitchEnd& end, RunFolder* folder) {
  const std::string from = plan_hash(end.from), to = plan_hash(end.to);
  const std::string hashes = fmt::format("plan {} → {}", from.substr(0, 4), to.substr(0, 4));
  if (!end.why_not.empty()) {
    const std::string line = fmt::format("step {}: {} rejected: {}", step_, hashes, end.why_not);
    if (end.wish && end.wish->is_provisional && company_.watching != nullptr)
      return company_.watching->controller()->proposal_cancelled(), line;
    if (folder != nullptr) events_.report(Warning{line});
    if (end.wish && company_.watching != nullptr) company_.watching->controller()->proposal_refused();
    return line;
  }
  ++epoch_;
  if (company_.watching != nullptr) {
    company_.watching->took(part_);
    if (AdaptationController* const controller = company_.watching->controller())
      controller->plan_adopted(part_.plan, end.wish, step_);
  }
  RealFileSystem files;
  if (folder != nullptr) keep_plan(files, settings_.run, part_.plan, epoch_);
  keepers_ = course_.keep(part_);
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
  if (end.wish) {
    wished_gain_ = end.wish->predicted_gain;
    line = fmt::format("step {}: {}; switching to {} (expected {:+.0f} %, break-even after {}); {}", step_,
                       end.why, short_text(end.to), 100 * wished_gain_, steps_text(end.wish->payback_steps),
                       line.substr(line.find(": ") + 2));
  }
  const std::string why = evidence_of(end);
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
  if (end.wish)
    decision.predicted_gain = end.wish->predicted_gain, decision.cause = end.wish->cause,
    decision.alternatives = end.wish->alternatives;
  const Outcome<void> kept = folder->decisions.append_line(decision_line(decision));
  if (!kept) events_.report(Warning{kept.error().why});
  return line;
}

// A new phase changes what is learned, so the value that decided about it is added to the evidence.
std::string Training::evidence_of(const SwitchEnd& end) const {
  if (!end.is_phase || !follows_noise(options_.batch_ramp) || part_.is_empty()) return end.why;
  const std::optional<double> noise = part_.engine->noise.samples();
  return noise ? fmt::format("{}, gradient noise scale {:.3g} samples", end.why, *noise) : end.why;
}

Standing Training::stand() {
  progress_.finish();
  Standing standing;
  standing.state = done_, standing.epoch = epoch_;
  if (const auto& numbers = part_.numbers) {  // a rank without a part has not counted updates
    standing.state.num_updates = numbers->num_updates, standing.state.fp8 = numbers->fp8;
    standing.state.loss_scale = {numbers->loss_scale.value, numbers->loss_scale.num_good};
    standing.state.noise = numbers->noise;
  }
  // A rank without a part in the plan has nothing to save, and a rank that is changing plans has no complete
  // state.
  standing.is_torn =
      part_.parameters == nullptr || (company_.switches != nullptr && company_.switches->is_moving());
  if (standing.is_torn || part_.engine == nullptr) return standing;
  Engine& engine = *part_.engine;
  engine.let_go();
  if (engine.progress() == Engine::Progress::updating) follow({});
  standing.state = done_;
  standing.is_torn = engine.progress() == Engine::Progress::torn;
  standing.is_at_gate = engine.progress() == Engine::Progress::at_gate;
  standing.gate = engine.gate_sums();
  return standing;
}

void Training::follow(const std::vector<double>& gate) {
  last_ = metrics_of(part_.engine->finish_step(gate));
  decide_phase();
  done_ = state();
}

// Called after every step. The decision depends only on values that all ranks of the plan share, so that what
// is learned next does not depend on the deciding rank. Ranks without a part learn of it through the step
// agreement.
void Training::decide_phase() {
  if (!follows_noise(options_.batch_ramp)) return;
  if (const auto begin = next_begin(settings_.phases, phase_begins_, step_, part_.engine->noise.samples()))
    phase_begins_.push_back(*begin);
}

// Called on all ranks after the same step.
void Training::know_phase(std::int64_t begin) {
  if (begin == 0) return;
  if (phase_begins_.empty() || phase_begins_.back() < begin) phase_begins_.push_back(begin);
  done_.phase_begins = phase_begins_;
  if (company_.switches != nullptr) company_.switches->know_phase(begin);
}

}  // namespace optimus
