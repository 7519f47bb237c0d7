// Implements inference.h.
#include "inference/inference.h"

#include "base/error.h"
#include "engine/device.h"
#include "inference/weights.h"
#include "schedule/program.h"
#include "switching/memory.h"

namespace optimus {
namespace {

void refuse_too_large_weights(const ModelSpec& model, Precision precision, at::Device device) {
  const Bytes needed(num_parameters(model) * bytes_of(precision));
  const std::optional<Bytes> free = free_memory(device);
  if (free && needed > *free)
    throw UserError("the weights of {} need {} in {}, but {} has only {} free", model.name, text(needed),
                    text(precision), device.str(), text(*free));
}

}  // namespace

Plan inference_plan(const ModelSpec& model, Precision precision, std::int64_t sequences,
                    std::int64_t sequence_length) {
  UniformPlan shape{.microbatch = static_cast<int>(sequences),
                    .batch = sequences,
                    .sequence_length = sequence_length,
                    .precision = precision};
  shape.strategy.recompute = RecomputeMode::full;
  return uniform_plan(model, shape);
}

Inference open_for_inference(const std::string& model, const ComputeOptions& options, EventSink& events) {
  const at::Device device = choose_device(options.device);
  if (options.threads < 0 || options.threads > 4096)
    throw UsageError("--threads: expected 0 to 4096, got {}", options.threads);
  set_num_threads(static_cast<int>(options.threads));
  const std::string default_precision = device.is_cuda() ? "bf16" : "fp32";
  const Precision precision =
      parse_precision(options.precision.empty() ? default_precision : options.precision, "--precision");
  OpenedModel opened = open_trained_model(model, events);
  refuse_too_large_weights(opened.spec, precision, device);
  Parameters parameters(inference_plan(opened.spec, precision, 1, 1), opened.spec, 0, device,
                        StorageMode::weights);
  load_weights(*opened.weights, parameters, events);
  return {std::move(opened), precision, device, std::move(parameters)};
}

void refuse_too_large_pass(const Plan& plan, const ModelSpec& model, at::Device device, Bytes extra_bytes,
                           const std::string& work_description) {
  const Bytes needed = plan_arena(compile(plan, model, 0)).bytes + extra_bytes;
  const std::optional<Bytes> free = free_memory(device);
  if (free && needed > *free)
    throw UserError("{} need {} in addition to the weights, but {} has only {} free", work_description,
                    text(needed), device.str(), text(*free));
}

}  // namespace optimus
