// See generate.h.
#include "engine/generate.h"

#include <ATen/ops/argmax.h>

#include <cmath>

#include "base/error.h"
#include "base/random.h"
#include "engine/cache.h"
#include "engine/engine.h"

namespace optimus {
namespace {

Plan plan_for(const ModelSpec& model, Precision precision, std::int64_t length) {
  return uniform_plan(model,
                      {.microbatch = 1, .batch = 1, .sequence_length = length, .precision = precision});
}

Batch batch_of(const std::vector<std::int64_t>& ids, std::int64_t first_position) {
  Batch batch;
  batch.sequence_length = std::ssize(ids), batch.num_tokens = batch.num_counted = std::ssize(ids);
  Microbatch& microbatch = batch.microbatches.emplace_back();
  microbatch.ids = ids, microbatch.targets.assign(ids.size(), -1), microbatch.samples = {0};
  for (std::int64_t i = 0; i < std::ssize(ids); ++i)
    microbatch.positions.push_back(static_cast<std::int32_t>(first_position + i));
  return batch;
}

// One row of logits; a uniform number in [0, 1).
std::int64_t pick(const at::Tensor& logits, double temperature, double uniform) {
  if (temperature == 0) return logits.argmax().item<std::int64_t>();
  const at::Tensor sums = logits.to(at::kCPU, at::kDouble).div(temperature).softmax(0).cumsum(0);
  const double* begin = sums.data_ptr<double>();
  const double* at = std::upper_bound(begin, begin + sums.numel(), uniform * begin[sums.numel() - 1]);
  return std::min<std::int64_t>(at - begin, sums.numel() - 1);
}

}  // namespace

std::vector<std::int64_t> generate(const ModelSpec& model, Precision precision, Parameters& parameters,
                                   at::Device device, const std::vector<std::int64_t>& prompt,
                                   const GenerateOptions& options) {
  const std::int64_t total = std::ssize(prompt) + options.num_tokens;
  if (!model.is_causal) throw UserError("{} fills in masked words and cannot generate text", model.name);
  if (prompt.empty()) throw UserError("generation needs a prompt of at least one token");
  for (const std::int64_t id : prompt)
    if (id < 0 || id >= model.vocab)
      throw UserError("the prompt's token {} is outside the vocabulary of {}", id, model.vocab);
  if (model.positions == PositionKind::learned && total > model.max_positions)
    throw UserError("{} tokens of prompt and {} new ones are more than the model's {} positions",
                    prompt.size(), options.num_tokens, model.max_positions);
  const EngineOptions engine_options{.device = device, .seed = 0, .num_positions = total};
  KeyValueCache cache(model, total, types_of(precision), device);
  std::vector<std::int64_t> result;
  at::Tensor logits =
      Engine(plan_for(model, precision, std::ssize(prompt)), model, parameters, engine_options)
          .logits(batch_of(prompt, 0), &cache);
  Engine one(plan_for(model, precision, 1), model, parameters, engine_options);
  const RandomKey key = RandomKey(static_cast<std::uint64_t>(options.seed)).with("generate");
  while (std::ssize(result) < options.num_tokens) {
    const double uniform = random_uniform(key, static_cast<std::uint64_t>(result.size()));
    result.push_back(pick(logits[logits.size(0) - 1], options.temperature, uniform));
    if (std::ssize(result) < options.num_tokens)
      logits = one.logits(batch_of({result.back()}, cache.length()), &cache);
  }
  return result;
}

}  // namespace optimus
