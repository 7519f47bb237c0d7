// See training.h.
#include "run/training.h"

#include <algorithm>
#include <cctype>
#include <chrono>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "cluster/standard.h"
#include "plan/plan_json.h"
#include "run/expected.h"
#include "run/profile.h"

namespace optimus {
namespace {

Seconds wall_time() {
  return Seconds(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
}

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// Of products of this precision: the maker's figure, or what was measured of a device whose maker we do not know.
std::optional<double> peak_flops(at::Device device, Precision precision) {
  NullSink quiet;  // whoever predicts the step has warned
  std::optional<DeviceType> type = find_type_in(device_name(device));
  if (!type) type = measured_type(type_name(device), quiet);
  if (!type) return std::nullopt;
  const double peak = precision == Precision::bf16   ? type->peak.bf16
                      : precision == Precision::fp16 ? type->peak.fp16
                      : precision == Precision::fp64 ? type->peak.fp64
                                                     : type->peak.fp32;
  return peak > 0 ? std::optional(peak) : std::nullopt;
}

}  // namespace

std::string type_name(at::Device device) {
  const std::string maker = device_name(device);
  if (const std::optional<DeviceType> type = find_type_in(maker)) return type->name;
  return maker.empty() ? "cpu" : maker;
}

at::Device choose_device(const std::string& name) {
  if (!name.empty()) return parse_device(name);
  return has_cuda() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

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
    throw UserError("{} holds a run already; go on with it by --resume, or give another folder with --run",
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
  value_or_throw(write_atomically(files, run / "plan.json", plan_text(settings.plan)));
}

RunFolder open_records(const Path& run, FileSystem& files, std::int64_t last_step) {
  return {value_or_throw(MetricsFile::open(files, run / "metrics.jsonl", last_step)),
          value_or_throw(TensorBoardFile::create(files, run / "tensorboard", wall_time(), last_step))};
}

void say_how_it_runs(const TrainSettings& settings, at::Device device, int threads, StatusLine& line) {
  const std::vector<int>& microbatches = settings.plan.pipelines[0].microbatches;
  const int workers = num_devices(settings.plan);
  std::string how = workers > 1 ? fmt::format(", {} workers", workers) : "";
  if (device.is_cpu())
    how += fmt::format(", {} thread{}{}", threads, threads == 1 ? "" : "s", workers > 1 ? " each" : "");
  line.print(fmt::format("plan {}: batch {} as {} x {}, {} on {}{}", plan_hash(settings.plan),
                         settings.plan.batch, microbatches.size(), microbatches[0],
                         text(settings.plan.precision),
                         workers > 1 && device.is_cuda() ? "cuda" : device.str(), how));
  line.print(fmt::format("run {}", settings.run.string()));
}

Training::Training(const TrainOptions& options, const TrainSettings& settings, Course course, Engine& engine,
                   const Parameters& parameters, const TrainingState& start, EventSink& events,
                   StatusLine& line)
    : options_(options),
      settings_(settings),
      course_(std::move(course)),
      engine_(engine),
      parameters_(parameters),
      events_(events),
      progress_(line, settings.steps),
      flops_per_token_(model_flops_per_token(settings.model, settings.plan.sequence_length)),
      peak_flops_(peak_flops(engine.device(), settings.plan.precision)),
      save_rule_(parse_save_rule(options.save_every, "--save-every")),
      line_(line),
      step_(start.step),
      next_sample_(start.num_samples),
      last_save_(std::chrono::steady_clock::now()) {
  engine_.num_updates = start.num_updates;
  engine_.loss_scale = {start.loss_scale.value, start.loss_scale.num_good};
  done_ = state();
}

TrainResult Training::run(RunFolder* folder, Saver& saver, Profiler* profiler, Saver* memory) {
  profiler_ = profiler;
  const auto began = std::chrono::steady_clock::now();
  TrainResult result{.run = settings_.run.string(), .steps = settings_.steps};
  std::int64_t num_tokens = 0;
  try {
    while (step_ < settings_.steps) {
      const StepMetrics metrics = one_step();
      record(metrics, folder);
      result.loss = metrics.loss, num_tokens += metrics.tokens;
      if (metrics.validation_loss) result.validation_loss = metrics.validation_loss;
      save_if_due(saver);
      if (memory != nullptr) save_to_memory(*memory);
      if (step_ == settings_.steps) continue;
      events_.report(Progress{"training", step_, settings_.steps, "steps"});
      if (course_.step_ended) course_.step_ended();
    }
  } catch (const Interrupted&) {  // by the user, between steps
    progress_.finish();
    save_last(saver);
    line_.print(fmt::format("stopped after step {}; --resume {} goes on", step_, settings_.run.string()));
    throw;
  } catch (const UserError&) {  // data that cannot be read: what was learned until then is kept
    progress_.finish();
    if (num_tokens > 0 && saver.is_alone())
      line_.print(fmt::format("saved in {}", save_last(saver).string()));
    throw;
  }
  progress_.finish();
  result.tokens_per_second = static_cast<double>(num_tokens) / seconds_since(began);
  result.checkpoint = save_last(saver).string();
  return result;
}

TrainingState Training::state() const {
  TrainingState state;
  state.step = step_, state.num_updates = engine_.num_updates, state.num_samples = next_sample_;
  state.seed = options_.seed, state.precision = settings_.plan.precision;
  state.loss_scale = {engine_.loss_scale.value, engine_.loss_scale.num_good};
  return state;
}

void Training::save_if_due(Saver& saver) {
  const std::optional<SaveResult> ended = saver.take_ended(false);
  if (ended && ended->saved) saved_ = ended->metrics;
  if (ended && !ended->saved)
    events_.report(Warning{fmt::format("the checkpoint of step {} was not written, training goes on: {}",
                                       ended->metrics.step, ended->saved.error().why)});
  if (step_ == settings_.steps) return;
  const bool is_time = is_due(save_rule_, step_, Seconds(seconds_since(last_save_)));
  if (save_rule_.period.value > 0 ? !saver.agree(is_time) : !is_time) return;
  saver.begin(state());
  last_save_ = std::chrono::steady_clock::now();
}

void Training::save_to_memory(Saver& memory) {
  const std::optional<SaveResult> ended = memory.take_ended(false);
  if (ended && !ended->saved)
    events_.report(Warning{fmt::format("the state of step {} was not kept in memory, training goes on: {}",
                                       ended->metrics.step, ended->saved.error().why)});
  if (step_ < settings_.steps && step_ % options_.memory_every == 0) memory.begin(state());
}

Path Training::save_last(Saver& saver) {
  std::optional<SaveResult> last = saver.take_ended(true);
  if (!last || !last->saved || last->metrics.step != step_) {
    saver.begin(state());
    last = saver.take_ended(true);
  }
  if (!last->saved)
    throw UserError("the checkpoint of step {} was not written: {}", step_, last->saved.error().why);
  return last->saved->folder;
}

StepMetrics Training::one_step() {
  step_began_ = std::chrono::steady_clock::now();
  const bool is_last = step_ + 1 == settings_.steps;
  const Batch batch = next_.valid() ? next_.get() : course_.read(step_, next_sample_);
  rate_ = learning_rate_at(settings_.learning_rate, ++step_);
  next_sample_ += settings_.plan.batch;
  if (!is_last)  // read while this step is computed
    next_ = std::async(std::launch::async,
                       [this, step = step_, sample = next_sample_] { return course_.read(step, sample); });
  if (profiler_ != nullptr) profiler_->before(step_);
  // Step sizes of stages with delays grow to the given one in five warm-ups; each micro-batch is an update.
  const std::int64_t num_rescheduled =
      5 * settings_.learning_rate.warmup * std::ssize(settings_.plan.pipelines[0].microbatches);
  const StepReport report =
      value_or_throw(engine_.train_step(batch, {.learning_rate = rate_,
                                                .beta1 = options_.beta1,
                                                .beta2 = options_.beta2,
                                                .epsilon = options_.epsilon,
                                                .weight_decay = options_.weight_decay,
                                                .clip = options_.clip,
                                                .pipemare = {.num_rescheduled = num_rescheduled}}));
  StepMetrics metrics = metrics_of(report);
  done_ = state(), last_ = metrics;
  if (profiler_ != nullptr) profiler_->after(step_);
  metrics.saved = std::exchange(saved_, std::nullopt);
  if (is_last || (options_.eval_every > 0 && step_ % options_.eval_every == 0))
    metrics.validation_loss = course_.validate(engine_);
  return metrics;
}

StepMetrics Training::metrics_of(const StepReport& report) const {
  StepMetrics metrics{
      .step = step_, .loss = report.loss, .grad_norm = report.grad_norm, .learning_rate = rate_};
  metrics.tokens = report.num_tokens;
  metrics.seconds = Seconds(seconds_since(step_began_));
  metrics.tokens_per_second = static_cast<double>(report.num_tokens) / metrics.seconds.value;
  metrics.tflops = metrics.tokens_per_second * flops_per_token_ / 1e12;
  if (peak_flops_) metrics.mfu = *metrics.tflops * 1e12 / *peak_flops_;
  metrics.memory = parameters_.bytes() + engine_.bytes();
  metrics.is_skipped = report.is_skipped;
  if (report.loss_scale > 0) metrics.loss_scale = report.loss_scale;
  return metrics;
}

Standing Training::stand() {
  progress_.finish();
  engine_.let_go();
  if (engine_.progress() == Engine::Progress::updating) follow({});
  Standing standing;
  standing.state = done_;
  standing.is_torn = engine_.progress() == Engine::Progress::torn;
  standing.is_at_gate = engine_.progress() == Engine::Progress::at_gate;
  standing.gate = engine_.gate_sums();
  return standing;
}

void Training::follow(const std::vector<double>& gate) {
  last_ = metrics_of(engine_.finish_step(gate));
  done_ = state();
}

void Training::record(const StepMetrics& metrics, RunFolder* folder) {
  if (folder != nullptr)
    for (const Outcome<void>& done :
         {folder->metrics.append(metrics), folder->board.append(metrics, wall_time())})
      if (!done) events_.report(Warning{done.error().why});
  if (metrics.is_skipped)
    events_.report(
        Warning{fmt::format("step {}: the gradient is not finite; nothing was updated", metrics.step)});
  progress_.step_ended(metrics);
}

}  // namespace optimus
