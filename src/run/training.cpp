// Implements the training loop of training.h. training_change.cpp implements changes of the plan, phase and
// membership.
#include "run/training.h"

#include <ATen/ops/zeros.h>

#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cluster/standard.h"
#include "plan/describe.h"
#include "plan/plan_json.h"
#include "run/elastic_rank.h"
#include "run/profile.h"
#include "run/rank_monitor.h"
#include "run/step_record.h"
#include "settings/expected.h"
#include "settings/phases.h"

namespace optimus {
namespace {

constexpr int kSavedTag = 0x7fe1;  // differs from the tags of steps and of step records

double seconds_since(std::chrono::steady_clock::time_point begin_time) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count();
}

}  // namespace

void print_plan_summary(const TrainSettings& settings, at::Device device, int threads, StatusLine& line) {
  const std::vector<int>& microbatches = settings.plan.pipelines[0].microbatches;
  const int workers = num_devices(settings.plan);
  std::string device_text = workers > 1 ? fmt::format(", {} workers", workers) : "";
  if (device.is_cpu())
    device_text +=
        fmt::format(", {} thread{}{}", threads, threads == 1 ? "" : "s", workers > 1 ? " each" : "");
  line.print(fmt::format("plan {}: batch {} as {} x {}, {} on {}{}", plan_hash(settings.plan),
                         settings.plan.batch, microbatches.size(), microbatches[0],
                         text(settings.plan.precision),
                         workers > 1 && device.is_cuda() ? "cuda" : device.str(), device_text));
  for (std::size_t i = settings.first_phase + 1; i < settings.phase_plans.size(); ++i) {
    const Phase& phase = settings.phases[i];
    const std::string when =
        phase.begin_step == kUndecidedStep
            ? fmt::format("when the gradient noise scale reaches {} samples", phase.batch)
            : fmt::format("after step {}", phase.begin_step);
    line.print(fmt::format("{}: {}, {}", when, text(settings.phases[i - 1], phase),
                           short_text(settings.phase_plans[i])));
  }
  line.print(fmt::format("run {}", settings.run.string()));
}

Training::Training(const RunSpec& spec, TrainingHooks hooks, const RankContext& rank,
                   StepAgreement& agreement, PlanPart& part, const TrainingState& start, std::int64_t epoch)
    : spec_(spec),
      hooks_(std::move(hooks)),
      rank_(rank),
      agreement_(agreement),
      part_(part),
      progress_(rank.line, spec.settings.steps),
      save_rule_(parse_save_rule(spec.options.save_every, "--save-every")),
      step_(start.step),
      next_sample_(start.num_samples),
      epoch_(epoch),
      completed_state_(start),
      last_save_(std::chrono::steady_clock::now()) {
  adopt_state(start);
  if (!part_.is_empty()) completed_state_ = state();
}

Training::~Training() = default;

StepsEnd Training::run(const Companions& companions) {
  companions_ = companions;
  if (services_.saver == nullptr) services_ = hooks_.make_services(part_);
  const auto begin_time = std::chrono::steady_clock::now();
  TrainResult result{.run = spec_.settings.run.string()};
  std::int64_t num_tokens = 0;
  AfterStep next = AfterStep::proceed;
  try {
    while (step_ < spec_.settings.steps && next == AfterStep::proceed) {
      const StepMetrics metrics = run_step();
      result.loss = metrics.loss, num_tokens += metrics.tokens;
      if (metrics.validation_loss) result.validation_loss = metrics.validation_loss;
      if (step_ < spec_.settings.steps) next = end_of_step();
    }
  } catch (const ReportedError&) {  // for example, the data is unreadable
    progress_.finish();
    if (num_tokens > 0 && services_.saver != nullptr && services_.saver->is_alone())
      rank_.line.print(fmt::format("saved a checkpoint in {}", save_last().string()));
    throw;
  }
  progress_.finish();
  if (next == AfterStep::change_membership)
    return {.kind = StepsEnd::Kind::membership_change, .drained = drained_, .leaves = has_announced_leave_};
  result.steps = step_;
  result.tokens_per_second = static_cast<double>(num_tokens) / seconds_since(begin_time);
  result.checkpoint = save_last().string();
  if (next == AfterStep::proceed) return {.kind = StepsEnd::Kind::finished, .result = std::move(result)};
  result.end = TrainEnd::stopped;
  rank_.line.print(fmt::format("stopped after step {}; --resume {} will continue the run", step_,
                               spec_.settings.run.string()));
  return {.kind = StepsEnd::Kind::stopped, .result = std::move(result)};
}

StepMetrics Training::run_step() {
  const StepMetrics metrics = part_.is_empty() ? step_without_part() : train_step_of_part();
  if (!part_.is_empty() && is_rank_0_without_part() && rank_.comm.rank() == reporting_rank())
    send_step_record(rank_.comm, metrics, Deadline::after(spec_.options.timeout, "rank 0"));
  report_step(metrics);
  save_if_due();
  save_to_memory();
  return metrics;
}

// Called on all ranks, whether or not the plan uses them.
Training::AfterStep Training::end_of_step() {
  const bool is_interrupted =
      report_and_check_interrupt(rank_.events, Progress{"training", step_, spec_.settings.steps, "steps"});
  const StepVote agreed = agreement_.take();
  if (rank_.elastic != nullptr && rank_.elastic->step_heartbeat() != nullptr)
    rank_.elastic->step_heartbeat()->set_completed_step(step_);
  const bool is_alone = rank_.comm.size() == 1;  // a single rank does not need to wait for the next agreement
  if (agreed.ends || !agreed.stays || (is_alone && is_interrupted)) return AfterStep::stop;
  if (agreed.changes_membership || agreed.drained >= 0) {
    drained_ = agreed.drained;
    return AfterStep::change_membership;
  }
  if (companions_.monitor != nullptr) companions_.monitor->receive();
  set_phase_begin(agreed.phase);
  if (companions_.switches != nullptr) companions_.switches->step_ended(step_, agreed);
  if (companions_.monitor != nullptr) {
    if (agreed.collects) companions_.monitor->collect(step_);
    if (agreed.probes) companions_.monitor->probe();
  }
  agreement_.submit(vote(is_interrupted));
  return AfterStep::proceed;
}

// Returns this rank's requests for the next agreement.
StepVote Training::vote(bool is_interrupted) {
  StepVote vote;
  if (companions_.switches != nullptr) vote = companions_.switches->vote();  // based on the observations
  report_decisions();
  const StopRequest request = is_interrupted ? StopRequest::stop : rank_.stop.requested();
  vote.ends = request == StopRequest::stop;
  vote.stays = request != StopRequest::leave;
  vote.changes_membership =
      !vote.stays || (rank_.elastic != nullptr && rank_.elastic->wants_membership_change());
  vote.collects = companions_.monitor != nullptr && companions_.monitor->wants_to_collect();
  vote.probes = companions_.monitor != nullptr && companions_.monitor->wants_to_probe();
  vote.phase = phase_begins_.empty() ? 0 : phase_begins_.back();
  has_announced_leave_ = !vote.stays;
  return vote;
}

AdaptationController* Training::controller() const {
  return companions_.monitor != nullptr ? companions_.monitor->controller() : nullptr;
}

// On rank 0, reports decisions to keep the plan and the measured gain of a plan that the run proposed.
void Training::report_decisions() {
  if (controller() == nullptr || companions_.records == nullptr) return;
  const auto show = [&](const auto& decision) {
    progress_.finish();
    report(decision, *companions_.records, rank_.line, rank_.events);
  };
  if (const std::optional<StayDecision> stay = controller()->take_stay()) {
    const std::string plan = plan_hash(part_.plan), name = short_text(part_.plan);
    show(Decision{.step = step_,
                  .kind = "stay",
                  .evidence = fmt::format("{}; {}", stay->why, stay->reason),
                  .from = plan,
                  .to = plan,
                  .from_name = name,
                  .to_name = name,
                  .epoch = epoch_,
                  .cause = stay->cause,
                  .findings = stay->findings,
                  .alternatives = stay->alternatives});
  }
  if (const std::optional<double> gain = controller()->take_measured_gain())
    show(MeasuredGain{step_, epoch_, *gain, proposed_gain_});
}

TrainingState Training::state() const {
  TrainingState state;
  state.step = step_, state.num_updates = part_.engine->num_updates, state.num_samples = next_sample_;
  state.seed = spec_.options.seed, state.precision = spec_.settings.plan.precision;
  state.loss_scale = {part_.engine->loss_scale.value, part_.engine->loss_scale.num_good_steps};
  state.fp8 = part_.engine->fp8_history();
  if (is_noise_ramp(spec_.options.batch_ramp)) state.noise = part_.engine->noise;
  state.phase_begins = phase_begins_;
  return state;
}

void Training::save_if_due() {
  if (services_.saver == nullptr) return;
  Saver& saver = *services_.saver;
  const std::optional<SaveResult> ended = saver.take_result(false);
  if (ended && ended->saved) finished_save_ = ended->metrics;
  if (ended && !ended->saved)
    rank_.events.report(
        Warning{fmt::format("training continues, but the checkpoint of step {} could not be written: {}",
                            ended->metrics.step, ended->saved.error().why)});
  if (step_ == spec_.settings.steps) return;
  const bool is_save_due = is_due(save_rule_, step_, Seconds(seconds_since(last_save_)));
  if (save_rule_.period.value > 0 ? !saver.agree(is_save_due) : !is_save_due) return;
  saver.begin(state());
  last_save_ = std::chrono::steady_clock::now();
}

void Training::save_to_memory() {
  if (services_.memory == nullptr) return;
  Saver& memory = *services_.memory;
  const std::optional<SaveResult> ended = memory.take_result(false);
  if (ended && !ended->saved)
    rank_.events.report(
        Warning{fmt::format("training continues, but the state of step {} could not be stored in memory: {}",
                            ended->metrics.step, ended->saved.error().why)});
  if (step_ < spec_.settings.steps && step_ % spec_.options.memory_every == 0) memory.begin(state());
}

Path Training::save_last() {
  const Path folder = spec_.settings.run / kCheckpointsFolder / fmt::format("step-{}", step_);
  const auto vote = [] { return at::zeros({1}, at::kByte); };
  const Deadline deadline = Deadline::after(spec_.options.timeout, "the last checkpoint");
  if (rank_.comm.rank() == 0 && is_rank_0_without_part())
    throw_if_failed(
        rank_.comm.receive(reporting_rank(), vote(), kSavedTag, "the last checkpoint")->wait(deadline));
  if (services_.saver == nullptr) return folder;
  Saver& saver = *services_.saver;
  std::optional<SaveResult> last = saver.take_result(true);
  if (!last || !last->saved || last->metrics.step != step_) {
    saver.begin(state());
    last = saver.take_result(true);
  }
  if (!last->saved)
    throw RuntimeFailure("the checkpoint of step {} was not written: {}", step_, last->saved.error().why);
  if (is_rank_0_without_part() && rank_.comm.rank() == reporting_rank())
    throw_if_failed(rank_.comm.send(0, vote(), kSavedTag, "the last checkpoint")->wait(deadline));
  return last->saved->folder;
}

StepMetrics Training::train_step_of_part() {
  step_begin_time_ = std::chrono::steady_clock::now();
  const bool is_last = step_ + 1 == spec_.settings.steps;
  const Batch batch = next_batch_.valid() ? next_batch_.get() : hooks_.read(part_.plan, step_, next_sample_);
  const double data_wait = seconds_since(step_begin_time_);
  learning_rate_ = learning_rate_at(spec_.settings.learning_rate, ++step_);
  next_sample_ += part_.plan.batch;
  if (!is_last)  // prefetched while this step is computed
    next_batch_ = std::async(std::launch::async, [this, step = step_, sample = next_sample_] {
      return hooks_.read(part_.plan, step, sample);
    });
  if (services_.profiler != nullptr) services_.profiler->before_step(step_);
  if (companions_.monitor != nullptr) companions_.monitor->begin_step(*part_.engine);
  // With an asynchronous schedule, the learning rate of stages whose weights are delayed reaches the given
  // value after five times the warm-up. Each micro-batch performs an update.
  const std::int64_t num_warmup_updates =
      5 * spec_.settings.learning_rate.warmup * std::ssize(part_.plan.pipelines[0].microbatches);
  const StepReport report = value_or_throw(
      part_.engine->train_step(batch, {.learning_rate = learning_rate_,
                                       .beta1 = spec_.options.beta1,
                                       .beta2 = spec_.options.beta2,
                                       .epsilon = spec_.options.epsilon,
                                       .weight_decay = spec_.options.weight_decay,
                                       .clip = spec_.options.clip,
                                       .pipemare = {.num_warmup_updates = num_warmup_updates},
                                       .measures_gradient_noise = is_noise_ramp(spec_.options.batch_ramp)}));
  StepMetrics metrics = metrics_of(report);
  decide_phase();
  completed_state_ = state(), last_metrics_ = metrics;
  if (companions_.monitor != nullptr)
    companions_.monitor->end_step(*part_.engine,
                                  {metrics.seconds.value, data_wait, batch.squares, batch.expected_squares,
                                   num_sequences(batch), batch.num_tokens});
  if (controller() != nullptr) controller()->observe_loss(report.loss);
  if (services_.profiler != nullptr) services_.profiler->after_step(step_);
  metrics.saved = std::exchange(finished_save_, std::nullopt);
  if (is_last || (spec_.options.eval_every > 0 && step_ % spec_.options.eval_every == 0))
    metrics.validation_loss = hooks_.validate(part_);
  return metrics;
}

StepMetrics Training::metrics_of(const StepReport& report) const {
  StepMetrics metrics{
      .step = step_, .loss = report.loss, .grad_norm = report.grad_norm, .learning_rate = learning_rate_};
  metrics.epoch = epoch_;
  metrics.tokens = report.num_tokens;
  metrics.seconds = Seconds(seconds_since(step_begin_time_));
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

// The result depends on the sequence length of the current phase.
double Training::flops_per_token() const {
  return model_flops_per_token(spec_.settings.model, part_.plan.sequence_length);
}

bool Training::is_rank_0_without_part() const { return !has_device(part_.plan, 0); }

// Runs a step on a rank that the plan does not use. Only updates the counters and, on rank 0, receives the
// metrics.
StepMetrics Training::step_without_part() {
  ++step_, next_sample_ += part_.plan.batch;
  completed_state_.step = step_, completed_state_.num_samples = next_sample_;
  StepMetrics metrics{.step = step_, .learning_rate = learning_rate_at(spec_.settings.learning_rate, step_)};
  metrics.epoch = epoch_;
  if (rank_.comm.rank() != 0) return metrics;
  receive_step_record(rank_.comm, reporting_rank(), metrics,
                      Deadline::after(spec_.options.timeout, "the plan's ranks"));
  metrics.tflops = metrics.tokens_per_second * flops_per_token() / 1e12;
  if (controller() != nullptr) controller()->observe_loss(metrics.loss);
  last_metrics_ = metrics;
  return metrics;
}

void Training::report_step(const StepMetrics& metrics) {
  if (companions_.records != nullptr) record(metrics, *companions_.records, rank_.events);
  if (metrics.is_skipped)
    rank_.events.report(Warning{
        fmt::format("step {}: the gradients are non-finite, so the update was skipped", metrics.step)});
  if (companions_.records != nullptr || !part_.is_empty()) progress_.step_ended(metrics);
}

}  // namespace optimus
