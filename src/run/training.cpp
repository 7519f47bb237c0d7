// Implements training.h: the loop and its records.
#include "run/training.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cluster/standard.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "run/profile.h"
#include "run/rank_monitor.h"
#include "rundir/plan_files.h"
#include "settings/expected.h"
#include "settings/phases.h"

namespace optimus {
namespace {

// Tags of messages to a rank 0 without a part in the plan; they differ from the tags of steps.
constexpr int kStepTag = 0x7fe0, kSavedTag = 0x7fe1;

Seconds wall_time() {
  return Seconds(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
}

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

namespace {

// A run that is resumed with the same plan stays in its plan epoch.
std::int64_t next_epoch(const Path& run, const Plan& plan) {
  const std::optional<std::int64_t> newest = newest_epoch(run);
  if (!newest) return 0;
  const Outcome<std::string> text = read_file(plan_path(run, *newest));
  return text && *text == plan_text(plan) ? *newest : *newest + 1;
}

}  // namespace

RunFolder open_run_folder(const TrainSettings& settings, const TrainOptions& options,
                          const OptionTable* table, FileSystem& files, std::int64_t last_step) {
  begin_run_folder(settings, options, table, files);
  return open_records(settings.run, files, last_step);
}

void begin_run_folder(const TrainSettings& settings, const TrainOptions& options, const OptionTable* table,
                      FileSystem& files) {
  const Path& run = settings.run;
  std::error_code error;
  const Path checkpoints = run / kCheckpointsFolder;
  const bool has_checkpoints =
      std::filesystem::is_directory(checkpoints, error) && !std::filesystem::is_empty(checkpoints, error);
  if (options.resume.empty() && (has_checkpoints || std::filesystem::exists(run / "metrics.jsonl", error)))
    throw UserError(
        "{} already contains a run; continue it with --resume, or choose another folder with --run",
        run.string());
  value_or_throw(files.create_folders(run / "tensorboard"));
  std::string resolved;
  if (table != nullptr) {
    resolved = table->resolved_toml();
  } else {
    OptionTable own;
    TrainOptions copy = options;
    declare(own, copy);
    resolved = own.resolved_toml();
  }
  value_or_throw(write_atomically(files, run / "settings.toml", resolved));
  save_plan(files, run, settings.plan, options.resume.empty() ? 0 : next_epoch(run, settings.plan));
  write_phase_plans(files, run, settings);
}

RunFolder open_records(const Path& run, FileSystem& files, std::int64_t last_step,
                       const std::function<void()>& check) {
  return {run, value_or_throw(MetricsFile::open(files, run / "metrics.jsonl", last_step, check)),
          value_or_throw(TensorBoardFile::create(files, run / "tensorboard", wall_time(), last_step)),
          value_or_throw(MetricsFile::open(files, run / "decisions.jsonl", last_step, check))};
}

void print_plan_summary(const TrainSettings& settings, at::Device device, int threads, StatusLine& line) {
  const std::vector<int>& microbatches = settings.plan.pipelines[0].microbatches;
  const int workers = num_devices(settings.plan);
  std::string how = workers > 1 ? fmt::format(", {} workers", workers) : "";
  if (device.is_cpu())
    how += fmt::format(", {} thread{}{}", threads, threads == 1 ? "" : "s", workers > 1 ? " each" : "");
  line.print(fmt::format("plan {}: batch {} as {} x {}, {} on {}{}", plan_hash(settings.plan),
                         settings.plan.batch, microbatches.size(), microbatches[0],
                         text(settings.plan.precision),
                         workers > 1 && device.is_cuda() ? "cuda" : device.str(), how));
  for (std::size_t i = settings.first_phase + 1; i < settings.phase_plans.size(); ++i) {
    const Phase& phase = settings.phases[i];
    const std::string when = phase.begin_step == kUndecidedStep
                                 ? fmt::format("when the gradient noise scale is {} samples", phase.batch)
                                 : fmt::format("after step {}", phase.begin_step);
    line.print(fmt::format("{}: {}, {}", when, text(settings.phases[i - 1], phase),
                           short_text(settings.phase_plans[i])));
  }
  line.print(fmt::format("run {}", settings.run.string()));
}

Training::Training(const TrainOptions& options, const TrainSettings& settings, TrainingHooks hooks,
                   PlanPart& part, const TrainingState& start, const RankContext& context, EventSink& events,
                   StatusLine& line)
    : options_(options),
      settings_(settings),
      hooks_(std::move(hooks)),
      part_(part),
      context_(context),
      events_(events),
      progress_(line, settings.steps),
      save_rule_(parse_save_rule(options.save_every, "--save-every")),
      line_(line),
      step_(start.step),
      next_sample_(start.num_samples),
      epoch_(context.epoch),
      done_(start),
      last_save_(std::chrono::steady_clock::now()) {
  adopt_state(start);
  if (!part_.is_empty()) done_ = state();
}

Training::~Training() = default;

TrainResult Training::run(RunFolder* folder, PlanSwitchController* switches, RankMonitor* monitor) {
  context_.switches = switches, context_.monitor = monitor;
  if (services_.saver == nullptr) services_ = hooks_.keep(part_);
  const auto began = std::chrono::steady_clock::now();
  TrainResult result{.run = settings_.run.string(), .steps = settings_.steps};
  std::int64_t num_tokens = 0;
  try {
    while (step_ < settings_.steps) {
      const StepMetrics metrics = part_.is_empty() ? step_without_part() : train_step_of_part();
      send_metrics_to_rank_0(metrics);
      record(metrics, folder);
      result.loss = metrics.loss, num_tokens += metrics.tokens;
      if (metrics.validation_loss) result.validation_loss = metrics.validation_loss;
      save_if_due();
      save_to_memory();
      if (step_ == settings_.steps) continue;
      events_.report(Progress{"training", step_, settings_.steps, "steps"});
      end_of_step(folder);
    }
  } catch (const Interrupted&) {  // the user interrupted the run between two steps
    progress_.finish();
    save_last();
    line_.print(
        fmt::format("stopped after step {}; --resume {} continues the run", step_, settings_.run.string()));
    throw;
  } catch (const UserError&) {  // the data cannot be read; the progress so far is saved
    progress_.finish();
    if (num_tokens > 0 && services_.saver != nullptr && services_.saver->is_alone())
      line_.print(fmt::format("saved in {}", save_last().string()));
    throw;
  }
  progress_.finish();
  result.tokens_per_second = static_cast<double>(num_tokens) / seconds_since(began);
  result.checkpoint = save_last().string();
  return result;
}

// Called on all ranks, with or without a part.
void Training::end_of_step(RunFolder* folder) {
  const StepVote agreed = context_.agreement.take();
  if (context_.step_heartbeat != nullptr) context_.step_heartbeat->set_completed_step(step_);
  if (agreed.ends || !agreed.stays) throw Interrupted{};
  if (agreed.changes_membership || agreed.drained >= 0)
    throw MembershipChangeRequested{agreed.drained, has_announced_leave_};
  if (context_.monitor != nullptr) context_.monitor->receive();
  set_phase_begin(agreed.phase);
  StepVote vote;
  if (context_.switches != nullptr)
    context_.switches->step_ended(
        step_, agreed,
        {[this] { release_part(); },
         [this, folder](const SwitchOutcome& end) { return adopt_new_part(end, folder); }});
  if (context_.monitor != nullptr) {
    if (agreed.collects) context_.monitor->collect(step_);
    if (agreed.probes) context_.monitor->probe();
  }
  // Votes on the basis of what was observed so far.
  if (context_.switches != nullptr) vote = context_.switches->vote();
  if (context_.monitor != nullptr && folder != nullptr) record_decisions(*folder);
  vote.ends = context_.is_end_requested(), vote.changes_membership = context_.wants_membership_change();
  vote.stays = !context_.leaves();
  vote.collects = context_.monitor != nullptr && context_.monitor->wants_to_collect();
  vote.probes = context_.monitor != nullptr && context_.monitor->wants_to_probe();
  vote.phase = phase_begins_.empty() ? 0 : phase_begins_.back();
  has_announced_leave_ = !vote.stays;
  context_.agreement.submit(vote);
}

// On rank 0: reports that the plan stays, and the measured gain of a plan that the run proposed.
void Training::record_decisions(RunFolder& folder) {
  AdaptationController* const controller = context_.monitor->controller();
  if (controller == nullptr) return;
  if (const std::optional<StayDecision> stay = controller->take_stay()) record_stay(folder, *stay);
  const std::optional<double> gain = controller->take_measured_gain();
  if (!gain) return;
  progress_.finish();
  line_.print(fmt::format("step {}: measured gain of plan epoch {}: {:+.0f} % (predicted {:+.0f} %)", step_,
                          epoch_, 100 * *gain, 100 * proposed_gain_));
  const Outcome<void> kept = folder.decisions.append_line(measured_gain_line(step_, epoch_, *gain));
  if (!kept) events_.report(Warning{kept.error().why});
}

void Training::record_stay(RunFolder& folder, const StayDecision& stay) {
  const std::string plan = plan_hash(part_.plan);
  progress_.finish();
  line_.print(fmt::format("step {}: {}; keeping the current plan: {}", step_, stay.why, stay.reason));
  const Outcome<void> kept =
      folder.decisions.append_line(decision_line({.step = step_,
                                                  .kind = "stay",
                                                  .evidence = fmt::format("{}; {}", stay.why, stay.reason),
                                                  .from = plan,
                                                  .to = plan,
                                                  .epoch = epoch_,
                                                  .cause = stay.cause,
                                                  .alternatives = stay.alternatives}));
  if (!kept) events_.report(Warning{kept.error().why});
}

TrainingState Training::state() const {
  TrainingState state;
  state.step = step_, state.num_updates = part_.engine->num_updates, state.num_samples = next_sample_;
  state.seed = options_.seed, state.precision = settings_.plan.precision;
  state.loss_scale = {part_.engine->loss_scale.value, part_.engine->loss_scale.num_good_steps};
  state.fp8 = part_.engine->fp8_history();
  if (is_noise_ramp(options_.batch_ramp)) state.noise = part_.engine->noise;
  state.phase_begins = phase_begins_;
  return state;
}

void Training::save_if_due() {
  if (services_.saver == nullptr) return;
  Saver& saver = *services_.saver;
  const std::optional<SaveResult> ended = saver.take_result(false);
  if (ended && ended->saved) saved_ = ended->metrics;
  if (ended && !ended->saved)
    events_.report(Warning{fmt::format("could not write the checkpoint of step {}; training continues: {}",
                                       ended->metrics.step, ended->saved.error().why)});
  if (step_ == settings_.steps) return;
  const bool is_time = is_due(save_rule_, step_, Seconds(seconds_since(last_save_)));
  if (save_rule_.period.value > 0 ? !saver.agree(is_time) : !is_time) return;
  saver.begin(state());
  last_save_ = std::chrono::steady_clock::now();
}

void Training::save_to_memory() {
  if (services_.memory == nullptr) return;
  Saver& memory = *services_.memory;
  const std::optional<SaveResult> ended = memory.take_result(false);
  if (ended && !ended->saved)
    events_.report(
        Warning{fmt::format("could not store the state of step {} in memory; training continues: {}",
                            ended->metrics.step, ended->saved.error().why)});
  if (step_ < settings_.steps && step_ % options_.memory_every == 0) memory.begin(state());
}

Path Training::save_last() {
  const Path folder = settings_.run / kCheckpointsFolder / fmt::format("step-{}", step_);
  const auto vote = [] { return at::zeros({1}, at::kByte); };
  const Deadline deadline = Deadline::after(options_.timeout, "the last checkpoint");
  if (context_.comm.rank() == 0 && is_rank_0_without_part())
    throw_if_failed(
        context_.comm.receive(reporting_rank(), vote(), kSavedTag, "the last checkpoint")->wait(deadline));
  if (services_.saver == nullptr) return folder;
  Saver& saver = *services_.saver;
  std::optional<SaveResult> last = saver.take_result(true);
  if (!last || !last->saved || last->metrics.step != step_) {
    saver.begin(state());
    last = saver.take_result(true);
  }
  if (!last->saved)
    throw UserError("the checkpoint of step {} was not written: {}", step_, last->saved.error().why);
  if (is_rank_0_without_part() && context_.comm.rank() == reporting_rank())
    throw_if_failed(context_.comm.send(0, vote(), kSavedTag, "the last checkpoint")->wait(deadline));
  return last->saved->folder;
}

StepMetrics Training::train_step_of_part() {
  step_began_ = std::chrono::steady_clock::now();
  const bool is_last = step_ + 1 == settings_.steps;
  const Batch batch = next_.valid() ? next_.get() : hooks_.read(part_.plan, step_, next_sample_);
  const double data_wait = seconds_since(step_began_);
  rate_ = learning_rate_at(settings_.learning_rate, ++step_);
  next_sample_ += part_.plan.batch;
  if (!is_last)  // prefetched while this step is computed
    next_ = std::async(std::launch::async, [this, step = step_, sample = next_sample_] {
      return hooks_.read(part_.plan, step, sample);
    });
  if (services_.profiler != nullptr) services_.profiler->before(step_);
  if (context_.monitor != nullptr) context_.monitor->begin_step(*part_.engine);
  // With an asynchronous schedule, the learning rate of stages with delays grows to the given value within
  // five times the warm-up; each micro-batch is an update.
  const std::int64_t num_rescheduled =
      5 * settings_.learning_rate.warmup * std::ssize(part_.plan.pipelines[0].microbatches);
  const StepReport report = value_or_throw(
      part_.engine->train_step(batch, {.learning_rate = rate_,
                                       .beta1 = options_.beta1,
                                       .beta2 = options_.beta2,
                                       .epsilon = options_.epsilon,
                                       .weight_decay = options_.weight_decay,
                                       .clip = options_.clip,
                                       .pipemare = {.num_rescheduled = num_rescheduled},
                                       .measures_gradient_noise = is_noise_ramp(options_.batch_ramp)}));
  StepMetrics metrics = metrics_of(report);
  decide_phase();
  done_ = state(), last_ = metrics;
  if (context_.monitor != nullptr)
    context_.monitor->end_step(*part_.engine,
                               {metrics.seconds.value, data_wait, batch.squares, batch.expected_squares,
                                num_sequences(batch), batch.num_tokens});
  if (context_.monitor != nullptr && context_.monitor->controller() != nullptr)
    context_.monitor->controller()->observe_loss(report.loss);
  if (services_.profiler != nullptr) services_.profiler->after(step_);
  metrics.saved = std::exchange(saved_, std::nullopt);
  if (is_last || (options_.eval_every > 0 && step_ % options_.eval_every == 0))
    metrics.validation_loss = hooks_.validate(part_);
  return metrics;
}

StepMetrics Training::metrics_of(const StepReport& report) const {
  StepMetrics metrics{
      .step = step_, .loss = report.loss, .grad_norm = report.grad_norm, .learning_rate = rate_};
  metrics.epoch = epoch_;
  metrics.tokens = report.num_tokens;
  metrics.seconds = Seconds(seconds_since(step_began_));
  metrics.tokens_per_second = static_cast<double>(report.num_tokens) / metrics.seconds.value;
  metrics.tflops = metrics.tokens_per_second * flops_per_token() / 1e12;
  if (peak_flops_) metrics.mfu = *metrics.tflops * 1e12 / (*peak_flops_ * num_devices(part_.plan));
  metrics.memory = part_.parameters->bytes() + part_.engine->bytes();
  metrics.is_skipped = report.is_skipped;
  if (report.loss_scale > 0) metrics.loss_scale = report.loss_scale;
  return metrics;
}

void Training::end_writing() {
  if (services_.memory != nullptr) services_.memory->end_writing();
}

// Depends on the sequence length of the current phase.
double Training::flops_per_token() const {
  return model_flops_per_token(settings_.model, part_.plan.sequence_length);
}

bool Training::is_rank_0_without_part() const { return !has_device(part_.plan, 0); }

// Sends the metrics of a step to rank 0 if that has no part in the plan, because rank 0 writes the records.
void Training::send_metrics_to_rank_0(const StepMetrics& metrics) {
  if (part_.is_empty() || !is_rank_0_without_part() || context_.comm.rank() != reporting_rank()) return;
  at::Tensor numbers =
      at::tensor({metrics.loss, metrics.grad_norm, static_cast<double>(metrics.tokens), metrics.seconds.value,
                  metrics.is_skipped ? 1.0 : 0.0, metrics.loss_scale.value_or(0),
                  metrics.validation_loss.value_or(std::numeric_limits<double>::quiet_NaN()),
                  static_cast<double>(metrics.memory.value_or(Bytes(0)).value)},
                 at::kDouble);
  throw_if_failed(context_.comm.send(0, numbers, kStepTag, "step metrics")
                      ->wait(Deadline::after(options_.timeout, "rank 0")));
}

// A step of a rank without a part in the plan: only updates the counters and, on rank 0, receives the
// metrics.
StepMetrics Training::step_without_part() {
  ++step_, next_sample_ += part_.plan.batch;
  done_.step = step_, done_.num_samples = next_sample_;
  StepMetrics metrics{.step = step_, .learning_rate = learning_rate_at(settings_.learning_rate, step_)};
  metrics.epoch = epoch_;
  if (context_.comm.rank() != 0) return metrics;
  at::Tensor numbers = at::zeros({8}, at::kDouble);
  throw_if_failed(context_.comm.receive(reporting_rank(), numbers, kStepTag, "step metrics")
                      ->wait(Deadline::after(options_.timeout, "the plan's ranks")));
  const double* const values = numbers.const_data_ptr<double>();
  if (context_.monitor != nullptr && context_.monitor->controller() != nullptr)
    context_.monitor->controller()->observe_loss(values[0]);
  metrics.loss = values[0], metrics.grad_norm = values[1], metrics.tokens = std::llround(values[2]);
  metrics.seconds = Seconds(values[3]), metrics.is_skipped = values[4] != 0;
  metrics.tokens_per_second = values[2] / std::max(1e-9, values[3]);
  metrics.tflops = metrics.tokens_per_second * flops_per_token() / 1e12;
  if (values[5] > 0) metrics.loss_scale = values[5];
  if (!std::isnan(values[6])) metrics.validation_loss = values[6];
  metrics.memory = Bytes(std::llround(values[7]));
  last_ = metrics;
  return metrics;
}

void Training::record(const StepMetrics& metrics, RunFolder* folder) {
  if (folder != nullptr)
    for (const Outcome<void>& done :
         {folder->metrics.append(metrics), folder->board.append(metrics, wall_time())})
      if (!done) events_.report(Warning{done.error().why});
  if (metrics.is_skipped)
    events_.report(
        Warning{fmt::format("step {}: the gradient is not finite; the update was skipped", metrics.step)});
  if (folder != nullptr || !part_.is_empty()) progress_.step_ended(metrics);
}

}  // namespace optimus
