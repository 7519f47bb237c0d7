// Prints the console output of rank 0, exports the model and generates the sample text.
#include "run/rank_console.h"

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/convert.h"
#include "cluster/open.h"
#include "data/text_stream.h"
#include "engine/generate.h"
#include "inference/weights.h"
#include "run/training.h"
#include "settings/expected.h"

namespace optimus {
namespace {

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

void print_model_and_data(const TrainSettings& settings, StatusLine& line) {
  const ModelSpec& model = settings.model;
  line.print(fmt::format("model {}: {} parameters, {} layers, hidden {}, vocabulary {}", model.name,
                         with_commas(num_parameters(model)), model.layers, model.hidden, model.vocab));
  line.print(fmt::format("data {}: {} sequences of {} tokens per epoch", settings.data_name,
                         with_commas(settings.samples->epoch_size()), settings.plan.sequence_length));
  if (settings.weights != nullptr)
    line.print(fmt::format("weights from {}, {}", settings.weights->name(), text(settings.weights->type())));
}

// Prints the expected step time if this machine was measured.
void print_expected_speed(const TrainSettings& settings, at::Device device, EventSink& events,
                          StatusLine& line) {
  const std::optional<DeviceType> type = measured_type(type_name(device), events);
  if (!type) return;
  const std::optional<double> seconds = expected_step_seconds(*type, settings.plan, settings.model);
  if (!seconds) return;
  const double tokens =
      static_cast<double>(settings.plan.batch) * static_cast<double>(settings.plan.sequence_length);
  line.print(fmt::format("expected {} per step, {} tokens/s (from measurements of this machine)",
                         text(Seconds(*seconds)), short_count(tokens / *seconds)));
}

// Writes RUN/export. The tokenizer and the special token ids come from the initial model's folder, if there
// is one.
void export_model(const TrainSettings& settings, const Parameters& parameters, FileSystem& files,
                  EventSink& events, StatusLine& line) {
  const ParameterWeights weights(parameters, settings.plan.precision);
  const Path folder = settings.run / "export";
  write_model_folder(files, folder, description_of(settings, weights.type()), weights,
                     ConvertOptions{}.max_shard_size, events);
  line.print(fmt::format("exported to {}", folder.string()));
}

}  // namespace

void print_run_summary(const RunSpec& spec, const RankContext& rank) {
  print_model_and_data(spec.settings, rank.line);
  print_plan_summary(spec.settings, rank.device, rank.threads, rank.line);
  print_expected_speed(spec.settings, rank.device, rank.events, rank.line);
}

Plan one_device_plan(const TrainSettings& settings) {
  return uniform_plan(
      settings.model,
      {.batch = 1, .sequence_length = settings.plan.sequence_length, .precision = settings.plan.precision});
}

void export_and_sample(const RunSpec& spec, Parameters& parameters, const RankContext& rank,
                       TrainResult& result) {
  RealFileSystem files;
  if (spec.options.export_format == ExportFormat::hf)
    export_model(spec.settings, parameters, files, rank.events, rank.line);
  result.sample = sample_text(spec.settings, spec.options, parameters, rank.device);
}

}  // namespace optimus
