// See train.h.
#include "run/train.h"

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/hf_folder.h"
#include "data/unicode.h"
#include "engine/engine.h"
#include "engine/generate.h"
#include "run/memory.h"
#include "run/resume.h"
#include "run/saver.h"
#include "run/settings.h"
#include "run/training.h"

namespace optimus {
namespace {

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

void say_what_runs(const TrainSettings& settings, at::Device device, int threads, StatusLine& line) {
  const ModelSpec& model = settings.model;
  line.print(fmt::format("model {}: {} parameters, {} layers, hidden {}, vocabulary {}", model.name,
                         with_commas(num_parameters(model)), model.layers, model.hidden, model.vocab));
  line.print(fmt::format("data {}: {} sequences of {} an epoch", settings.data_name,
                         with_commas(settings.samples->epoch_size()), settings.plan.sequence_length));
  say_how_it_runs(settings, device, threads, line);
}

void refuse_finished(const TrainSettings& settings, const TrainingState& state) {
  if (state.step >= settings.steps)
    throw UserError("{} has done its {} steps; say --steps with a larger number to go on",
                    settings.run.string(), state.step);
}

// What a checkpoint needs beside tensors to be opened alone: how it ran, and its model and tokenizer as a Hugging Face folder
// has them.
std::vector<SmallFile> small_files(const TrainSettings& settings, const ResumedRun& resumed) {
  std::vector<SmallFile> files = hf_description({.model = settings.model,
                                                 .tokenizer = settings.tokenizer_name,
                                                 .origin = resumed.checkpoint.value_or(settings.origin)});
  for (const char* name : {"settings.toml", "plan.json"})
    files.push_back({name, value_or_throw(read_file(settings.run / name, Bytes(1 << 26)))});
  return files;
}

}  // namespace

TrainResult train(TrainOptions& options, OptionTable* table, EventSink& events, StatusLine& line) {
  RealFileSystem files;
  ResumedRun resumed;
  if (!options.resume.empty()) resumed = resume(options, table, files, events);
  const at::Device device = choose_device(options.device);
  const int threads = set_num_threads(static_cast<int>(options.threads));
  const TrainSettings settings =
      resolve(options, {.is_gpu = device.is_cuda()}, table, events, resumed.checkpoint);
  refuse_finished(settings, resumed.state);
  refuse_too_large(settings.plan, settings.model, device);
  RunFolder folder = open_run_folder(settings, options, table, files, resumed.state.step);
  say_what_runs(settings, device, threads, line);
  Parameters parameters(settings.plan, settings.model, 0, device);
  if (resumed.checkpoint)
    restore(Checkpoint::open(*resumed.checkpoint), settings.plan, settings.model, Restored::everything,
            parameters);
  else
    parameters.initialize(options.seed);
  Engine engine(settings.plan, settings.model, parameters, {.device = device, .seed = options.seed});
  const Course course{
      [&](std::int64_t step, std::int64_t first) {
        return read_batch(*settings.samples, settings.plan, step, first);
      },
      [&](Engine& trained) { return validation_loss(trained, settings); },
  };
  Saver saver({files, settings.run, {options.keep_last, options.keep_every}, small_files(settings, resumed)},
              settings.plan, settings.model, parameters);
  TrainResult result = Training(options, settings, course, engine, parameters, resumed.state, events, line)
                           .run(std::move(folder), saver);
  result.sample = sample_text(settings, options, parameters, device);
  return result;
}

TrainResult train(const std::string& model, const std::string& data, TrainOptions options) {
  options.model.model = model;
  options.data = {data};
  NullSink events;
  StatusLine line(stderr);
  return train(options, nullptr, events, line);
}

}  // namespace optimus
