// Implements evaluate.h.
#include "inference/evaluate.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/open.h"
#include "engine/device.h"
#include "inference/evaluate_ranks.h"
#include "inference/inference.h"
#include "plan/validate.h"
#include "settings/evaluate_plan.h"

namespace optimus {
namespace {

Sample read_window(const StreamRange& range, std::int64_t window, std::int64_t length,
                   const ModelSpec& model) {
  const std::int64_t begin = range.begin + window * length;
  std::vector<TokenId> tokens(static_cast<std::size_t>(length) + 1);
  range.tokens->read(begin, tokens);
  for (std::int64_t i = 0; i <= length; ++i)
    if (const TokenId id = tokens[static_cast<std::size_t>(i)]; id < 0 || id >= model.vocab)
      throw UserError(
          "token {} of the data is {}, which is outside the {}-token vocabulary of {}; was the data prepared "
          "with "
          "another tokenizer?",
          begin + i, id, model.vocab, model.name);
  Sample sample;
  sample.inputs.assign(tokens.begin(), tokens.end() - 1);
  sample.targets.assign(tokens.begin() + 1, tokens.end());
  for (std::int64_t i = 0; i < length; ++i) sample.positions.push_back(static_cast<std::int32_t>(i));
  sample.num_targets = length;
  return sample;
}

// Returns the sample without its targets. Such a sample pads a batch and does not contribute to the loss.
Sample without_targets(Sample sample) {
  std::fill(sample.targets.begin(), sample.targets.end(), kNoTarget);
  sample.num_targets = 0;
  return sample;
}

std::int64_t num_windows(const StreamRange& range, std::int64_t length) {
  return std::max<std::int64_t>(0, (range.end - range.begin - 1) / length);
}

Plan plan_for(const EvalOptions& options, const Inference& model, std::int64_t windows, std::int64_t length) {
  // Enough tokens per pass for efficient GEMMs.
  const std::int64_t tokens = model.device.is_cuda() ? 32768 : 2048;
  const std::int64_t default_batch = std::clamp<std::int64_t>(tokens / length, 1, windows);
  const std::int64_t batch = std::min(options.batch.value_or(default_batch), windows);
  const Plan plan = inference_plan(model.opened.spec, model.precision, batch, length);
  validate(plan, model.opened.spec, "--seq and --model");
  refuse_too_large_pass(plan, model.opened.spec, model.device, Bytes(0),
                        fmt::format("{} windows of {} tokens", batch, length));
  return plan;
}

void check_option_ranges(const EvalOptions& options) {
  const auto check = [](const char* name, const std::optional<std::int64_t>& value) {
    if (value && (*value < 1 || *value > 1'000'000'000))
      throw UsageError("--{}: expected 1 to 1,000,000,000, got {}", name, *value);
  };
  check("seq", options.sequence_length), check("batch", options.batch);
}

}  // namespace

LossSum sum_losses(Engine& engine, const Plan& plan, const ModelSpec& model, const StreamRange& range,
                   std::int64_t max_windows, EventSink& events, int rank) {
  const std::int64_t length = plan.sequence_length;
  const std::int64_t windows = std::min(max_windows, num_windows(range, length));
  LossSum total;
  for (std::int64_t first = 0; first < windows; first += plan.batch) {
    events.report(Progress{"evaluating", first * length, windows * length, "tokens"});
    std::vector<Sample> samples;
    for (std::int64_t w = first; w < first + plan.batch; ++w)
      samples.push_back(w < windows ? read_window(range, w, length, model)
                                    : without_targets(samples.front()));
    const Evaluation evaluation = value_or_throw(engine.evaluate(make_batch(samples, plan, 0, 0, rank)));
    total.sum += evaluation.loss_sum, total.count += evaluation.num_targets;
  }
  return total;
}

namespace {

// The token stream of an evaluation and its division into windows.
struct OpenedStream {
  StreamRange range;
  std::int64_t length = 0, windows = 0;
};

OpenedStream open_stream(const EvalOptions& options, const OpenedModel& model, EventSink& events) {
  const ModelSpec& spec = model.spec;
  if (!spec.is_causal)
    throw UserError("{} is a masked language model, but eval measures next-token prediction", spec.name);
  // Token files need no tokenizer, so a missing one is not worth a warning.
  NullSink null_sink;
  EventSink& warnings = is_tokenized(options.data) ? null_sink : events;
  const auto tokenizer = tokenizer_for_text(model, options.tokenizer, warnings);
  const std::shared_ptr<const TokenSet> tokens = open_data(options.data, *tokenizer, events);
  OpenedStream opened{{tokens, 0, tokens->num_tokens()}, 0, 0};
  opened.length = options.sequence_length.value_or(std::min<std::int64_t>(spec.max_positions, 1024));
  opened.windows = num_windows(opened.range, opened.length);
  if (opened.windows == 0)
    throw UserError("{} has {} tokens, but one window with --seq {} needs {}", options.data, opened.range.end,
                    opened.length, opened.length + 1);
  return opened;
}

EvalResult result_of(const LossSum& total, const ModelSpec& model, Precision precision) {
  if (!std::isfinite(total.sum))
    throw UserError("the loss of {} is not finite in {}; try another --precision", model.name,
                    text(precision));
  return {total.mean(), std::exp(total.mean()), total.count};
}

EvalResult evaluate_on_ranks(const EvalOptions& options, EventSink& events) {
  const OpenedModel model = open_trained_model(options.model, events);
  const OpenedStream stream = open_stream(options, model, events);
  EvalWork eval_work{.windows = stream.windows, .sequence_length = stream.length};
  eval_work.batch = options.batch;
  const bool is_gpu = choose_device(options.compute.device).is_cuda();
  if (is_gpu) eval_work.tokens_per_pass = 32768;
  if (!options.compute.precision.empty())
    eval_work.precision = parse_precision(options.compute.precision, "--precision");
  else if (options.layout.plan.empty())
    eval_work.precision = is_gpu ? Precision::bf16 : Precision::fp32;
  const Plan plan = evaluation_plan(options.layout, model.spec, eval_work);
  const LossSum total = on_ranks(plan, model, options.compute, [&](Engine& engine, int rank) {
    NullSink null_sink;
    return sum_losses(engine, plan, model.spec, stream.range, stream.windows, rank == 0 ? events : null_sink,
                      rank);
  });
  return result_of(total, model.spec, plan.precision);
}

}  // namespace

EvalResult evaluate(const EvalOptions& options, EventSink& events) {
  check_option_ranges(options);
  if (num_devices(options.layout) > 1 || !options.layout.plan.empty())
    return evaluate_on_ranks(options, events);
  Inference model = open_for_inference(options.model, options.compute, events);
  const ModelSpec& spec = model.opened.spec;
  const OpenedStream stream = open_stream(options, model.opened, events);
  const Plan plan = plan_for(options, model, stream.windows, stream.length);
  Engine engine(plan, spec, model.parameters, {.device = model.device});
  const LossSum total = sum_losses(engine, plan, spec, stream.range, stream.windows, events);
  return result_of(total, spec, model.precision);
}

}  // namespace optimus
