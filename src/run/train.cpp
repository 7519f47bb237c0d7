// See train.h.
#include "run/train.h"

#include <chrono>
#include <future>

#include "base/error.h"
#include "base/file.h"
#include "data/unicode.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "observe/metrics.h"
#include "observe/progress.h"
#include "observe/tensorboard.h"
#include "plan/plan_json.h"
#include "run/memory.h"
#include "run/settings.h"

namespace optimus {
namespace {

at::Device choose_device(const std::string& name) {
  if (!name.empty()) return parse_device(name);
  return has_cuda() ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU);
}

Seconds wall_time() {
  return Seconds(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
}

// The files of a run.
struct RunFolder {
  MetricsFile metrics;
  TensorBoardFile board;
};

RunFolder create_run_folder(const TrainSettings& settings, const TrainOptions& options,
                            const OptionTable* table, FileSystem& files) {
  const Path& run = settings.run;
  std::error_code error;
  if (std::filesystem::exists(run / "metrics.jsonl", error))
    throw UserError("{} holds a run already; give another folder with --run", run.string());
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
  return {value_or_throw(MetricsFile::open(files, run / "metrics.jsonl", 0)),
          value_or_throw(TensorBoardFile::create(files, run / "tensorboard", wall_time(), 0))};
}

// Mean validation loss over the first windows of the held-out part: at most a few batches. The last batch is filled up with
// sequences that count nothing.
std::optional<double> validation_loss(Engine& engine, const TrainSettings& settings) {
  constexpr std::int64_t kMostBatches = 4;
  if (!settings.validation || !settings.model.is_causal) return std::nullopt;
  const std::int64_t length = settings.plan.sequence_length, batch = settings.plan.batch;
  const std::int64_t windows = (settings.validation->end - settings.validation->begin - 1) / length;
  double loss = 0;
  std::int64_t counted = 0;
  for (std::int64_t b = 0; b * batch < windows && b < kMostBatches; ++b) {
    std::vector<Sample> samples;
    for (std::int64_t w = b * batch; w < (b + 1) * batch; ++w) {
      std::vector<TokenId> tokens(static_cast<std::size_t>(length) + 1);
      settings.validation->tokens->read(settings.validation->begin + std::min(w, windows - 1) * length,
                                        tokens);
      Sample& sample = samples.emplace_back();
      sample.inputs.assign(tokens.begin(), tokens.end() - 1);
      sample.targets.assign(tokens.begin() + 1, tokens.end());
      if (w >= windows) std::fill(sample.targets.begin(), sample.targets.end(), kNoTarget);
      for (std::int64_t i = 0; i < length; ++i) sample.positions.push_back(static_cast<std::int32_t>(i));
      sample.num_counted = w < windows ? length : 0;
    }
    const Batch held_out = make_batch(samples, settings.plan, 0, 0);
    loss += engine.evaluate(held_out);
    counted += held_out.num_counted;
  }
  return counted > 0 ? std::optional(loss / static_cast<double>(counted)) : std::nullopt;
}

// What a model generates may be any bytes: without those that would disturb a terminal or a reader of UTF-8.
std::string printable(const std::string& generated) {
  std::string shown = repair_utf8(generated);
  std::erase_if(shown, [](char c) {
    return (static_cast<unsigned char>(c) < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
  });
  return shown;
}

std::string sample_text(const TrainSettings& settings, const TrainOptions& options, Parameters& parameters,
                        at::Device device) {
  std::int64_t count = options.sample_tokens;
  if (settings.model.positions == PositionKind::learned)
    count = std::min(count, settings.model.max_positions - 1);
  if (count <= 0 || !settings.model.is_causal) return "";
  std::vector<std::int64_t> prompt = {settings.tokenizer->end_of_document().value_or(0)};
  if (prompt[0] >= settings.model.vocab) prompt[0] = 0;
  const auto ids = generate(settings.model, settings.plan.precision, parameters, device, prompt,
                            {.num_tokens = count, .temperature = 0.8, .seed = options.seed});
  return printable(settings.tokenizer->decode(std::vector<TokenId>(ids.begin(), ids.end()), true));
}

// Everything of a run that is under way.
class Training {
 public:
  Training(TrainOptions& options, const TrainSettings& settings, at::Device device, RunFolder folder,
           EventSink& events, StatusLine& line)
      : options_(options),
        settings_(settings),
        device_(device),
        folder_(std::move(folder)),
        events_(events),
        progress_(line, settings.steps),
        parameters_(settings.plan, settings.model, 0, device),
        engine_(settings.plan, settings.model, parameters_, {.device = device, .seed = options.seed}),
        flops_per_token_(model_flops_per_token(settings.model, settings.plan.sequence_length)) {
    parameters_.initialize(options.seed);
  }

  TrainResult run() {
    const auto began = std::chrono::steady_clock::now();
    for (std::int64_t step = 0; step < settings_.steps; ++step) {
      one_step(step);
      events_.report(
          Progress{"training", step + 1, settings_.steps, "steps"});  // throws when the user wants to end
    }
    progress_.finish();
    TrainResult result{.run = settings_.run.string(), .steps = settings_.steps, .loss = loss_};
    result.tokens_per_second =
        static_cast<double>(num_tokens_) /
        std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    result.validation_loss = validation_;
    result.sample = sample_text(settings_, options_, parameters_, device_);
    return result;
  }

 private:
  void one_step(std::int64_t step) {
    const auto began = std::chrono::steady_clock::now();
    const Batch batch = next_.valid() ? next_.get() : read_batch(*settings_.samples, settings_.plan, step);
    if (step + 1 < settings_.steps)  // read while this step is computed
      next_ = std::async(std::launch::async,
                         [this, step] { return read_batch(*settings_.samples, settings_.plan, step + 1); });
    const double rate = learning_rate_at(settings_.learning_rate, step + 1);
    const StepReport report = engine_.train_step(batch, {.learning_rate = rate,
                                                         .beta1 = options_.beta1,
                                                         .beta2 = options_.beta2,
                                                         .epsilon = options_.epsilon,
                                                         .weight_decay = options_.weight_decay,
                                                         .clip = options_.clip});
    StepMetrics metrics{
        .step = step + 1, .loss = report.loss, .grad_norm = report.grad_norm, .learning_rate = rate};
    metrics.tokens = report.num_tokens;
    metrics.seconds =
        Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
    metrics.tokens_per_second = static_cast<double>(report.num_tokens) / metrics.seconds.value;
    metrics.tflops = metrics.tokens_per_second * flops_per_token_ / 1e12;
    metrics.memory = parameters_.bytes() + engine_.bytes();
    metrics.is_skipped = report.is_skipped;
    if (report.loss_scale > 0) metrics.loss_scale = report.loss_scale;
    const bool is_last = step + 1 == settings_.steps;
    if (is_last || (options_.eval_every > 0 && (step + 1) % options_.eval_every == 0))
      metrics.validation_loss = validation_ = validation_loss(engine_, settings_);
    record(metrics);
    loss_ = report.loss, num_tokens_ += report.num_tokens;
  }

  void record(const StepMetrics& metrics) {
    for (const Outcome<void>& done :
         {folder_.metrics.append(metrics), folder_.board.append(metrics, wall_time())})
      if (!done) events_.report(Warning{done.error().why});
    if (metrics.is_skipped)
      events_.report(
          Warning{fmt::format("step {}: the gradient is not finite; nothing was updated", metrics.step)});
    progress_.step_ended(metrics);
  }

  const TrainOptions& options_;
  const TrainSettings& settings_;
  const at::Device device_;
  RunFolder folder_;
  EventSink& events_;
  TrainingProgress progress_;
  Parameters parameters_;
  Engine engine_;
  const double flops_per_token_;
  std::future<Batch> next_;
  double loss_ = 0;
  std::optional<double> validation_;
  std::int64_t num_tokens_ = 0;
};

void say_what_runs(const TrainSettings& settings, at::Device device, int threads, StatusLine& line) {
  const ModelSpec& model = settings.model;
  line.print(fmt::format("model {}: {} parameters, {} layers, hidden {}, vocabulary {}", model.name,
                         with_commas(num_parameters(model)), model.layers, model.hidden, model.vocab));
  line.print(fmt::format("data {}: {} sequences of {} an epoch", settings.data_name,
                         with_commas(settings.samples->epoch_size()), settings.plan.sequence_length));
  const std::vector<int>& microbatches = settings.plan.pipelines[0].microbatches;
  line.print(fmt::format("plan {}: batch {} as {} x {}, {} on {}{}", plan_hash(settings.plan),
                         settings.plan.batch, microbatches.size(), microbatches[0],
                         text(settings.plan.precision), device.str(),
                         device.is_cpu() ? fmt::format(", {} threads", threads) : ""));
  line.print(fmt::format("run {}", settings.run.string()));
}

}  // namespace

TrainResult train(TrainOptions& options, OptionTable* table, EventSink& events, StatusLine& line) {
  const at::Device device = choose_device(options.device);
  const int threads = set_num_threads(static_cast<int>(options.threads));
  const TrainSettings settings = resolve(options, {.is_gpu = device.is_cuda()}, table, events);
  refuse_too_large(settings.plan, settings.model, device);
  RealFileSystem files;
  RunFolder folder = create_run_folder(settings, options, table, files);
  say_what_runs(settings, device, threads, line);
  return Training(options, settings, device, std::move(folder), events, line).run();
}

TrainResult train(const std::string& model, const std::string& data, TrainOptions options) {
  options.model.model = model;
  options.data = {data};
  NullSink events;
  StatusLine line(stderr);
  return train(options, nullptr, events, line);
}

}  // namespace optimus
