// See generate.h.
#include "engine/generate.h"

#include <ATen/ops/argmax.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"
#include "base/random.h"
#include "engine/cache.h"
#include "engine/engine.h"

namespace optimus {
namespace {

Plan plan_for(const ModelSpec& model, Precision precision, std::int64_t length) {
  UniformPlan shape{.microbatch = 1, .batch = 1, .sequence_length = length, .precision = precision};
  shape.strategy.recompute = RecomputeMode::full;  // so that a forward pass saves as little as possible
  return uniform_plan(model, shape);
}

Batch batch_of(const std::vector<std::int64_t>& ids, std::int64_t first_position) {
  Batch batch;
  batch.sequence_length = std::ssize(ids), batch.num_tokens = batch.num_targets = std::ssize(ids);
  Microbatch& microbatch = batch.microbatches.emplace_back();
  microbatch.ids = ids, microbatch.targets.assign(ids.size(), -1), microbatch.samples = {0};
  for (std::int64_t i = 0; i < std::ssize(ids); ++i)
    microbatch.positions.push_back(static_cast<std::int32_t>(first_position + i));
  return batch;
}

// Inverse transform sampling: returns the first index at which the cumulative sum of the probabilities
// exceeds `uniform` times their total.
std::size_t sample_index(const std::vector<double>& probabilities, double uniform) {
  std::vector<double> sums(probabilities.size());
  std::partial_sum(probabilities.begin(), probabilities.end(), sums.begin());
  const auto at = std::upper_bound(sums.begin(), sums.end(), uniform * sums.back());
  return std::min(static_cast<std::size_t>(at - sums.begin()), sums.size() - 1);
}

// Selects a token from one row of logits. `uniform` is a random number in [0, 1).
std::int64_t select_token(const at::Tensor& logits, const GenerateOptions& options, double uniform) {
  if (options.temperature == 0) return logits.argmax().item<std::int64_t>();
  const at::Tensor softmax =
      logits.to(at::kCPU, at::kDouble).div(options.temperature).softmax(0).contiguous();
  const double* begin = softmax.const_data_ptr<double>();
  std::vector<double> probabilities(begin, begin + softmax.numel());
  if (options.top_p >= 1) return static_cast<std::int64_t>(sample_index(probabilities, uniform));
  std::vector<std::int64_t> ids(probabilities.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::stable_sort(ids.begin(), ids.end(),
                   [&](std::int64_t a, std::int64_t b) { return begin[a] > begin[b]; });
  probabilities.clear();
  for (double sum = 0; probabilities.size() < ids.size() && sum < options.top_p; sum += probabilities.back())
    probabilities.push_back(begin[ids[probabilities.size()]]);
  return ids[sample_index(probabilities, uniform)];
}

void check_request(const ModelSpec& model, const std::vector<std::int64_t>& prompt, std::int64_t num_tokens) {
  if (!model.is_causal) throw UserError("{} is a masked language model and cannot generate text", model.name);
  if (prompt.empty()) throw UserError("generation needs a prompt of at least one token");
  for (const std::int64_t id : prompt)
    if (id < 0 || id >= model.vocab)
      throw UserError("prompt token {} is outside the vocabulary of {} tokens", id, model.vocab);
  const std::int64_t num_available =
      model.max_positions + 1 - std::ssize(prompt);  // the last new token needs no position
  if (model.positions == PositionKind::learned && num_tokens > num_available)
    throw UserError("{} prompt tokens and {} new tokens exceed the {} positions of {}; {}", prompt.size(),
                    num_tokens, model.max_positions, model.name,
                    num_available > 0 ? fmt::format("generate at most {} tokens", num_available)
                                      : "use a shorter prompt");
}

}  // namespace

std::vector<std::int64_t> generate(const ModelSpec& model, Precision precision, Parameters& parameters,
                                   at::Device device, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options) {
  const std::int64_t total = std::ssize(prompt) + options.num_tokens;
  check_request(model, prompt, options.num_tokens);
  ModelSpec extended_model = model;  // rotary positions have no limit
  if (model.positions == PositionKind::rope)
    extended_model.max_positions = std::max(model.max_positions, total);
  const EngineOptions engine_options{.device = device, .seed = 0, .num_positions = total};
  KeyValueCache cache(model, total, types_of(precision), device);
  std::vector<std::int64_t> result;
  at::Tensor logits = Engine(plan_for(extended_model, precision, std::ssize(prompt)), extended_model,
                             parameters, engine_options)
                          .logits(batch_of(prompt, 0), &cache);
  Engine decode_engine(plan_for(extended_model, precision, 1), extended_model, parameters, engine_options);
  const std::vector<std::int64_t>& ends = options.end_tokens;
  const RandomKey key = RandomKey(static_cast<std::uint64_t>(options.seed)).derive("generate");
  while (std::ssize(result) < options.num_tokens) {
    const double uniform = random_uniform(key, static_cast<std::uint64_t>(result.size()));
    result.push_back(select_token(logits[logits.size(0) - 1], options, uniform));
    if (options.on_token) options.on_token(result.back());
    if (std::count(ends.begin(), ends.end(), result.back()) > 0) break;
    if (std::ssize(result) < options.num_tokens)
      logits = decode_engine.logits(batch_of({result.back()}, cache.length()), &cache);
  }
  return result;
}

}  // namespace optimus
