// Implements describe() (module_block.h). Runs the parts of a model once before anything is planned, to
// determine their shapes, their floating-point operations, and the memory that autograd needs for them.
// Rejects parts whose results would depend on the plan.
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/record_function.h>
#include <c10/core/Allocator.h>
#include <torch/csrc/profiler/util.h>

#include <algorithm>
#include <atomic>
#include <set>

#include "base/error.h"
#include "base/text.h"
#include "engine/module_block.h"
#include "engine/module_graph.h"

namespace optimus {
namespace {

// Tracks libtorch's allocations on this thread and on the threads that work for it.
struct AllocationMeter final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    const std::int64_t allocated = current += bytes;
    std::int64_t maximum = peak;
    while (allocated > maximum && !peak.compare_exchange_weak(maximum, allocated)) {
    }
  }
  bool memoryProfilingEnabled() const override { return true; }

  std::atomic<std::int64_t> current = 0, peak = 0;
  double flops = 0;
};

// libtorch calls this function at the start of every operation. It adds the operation's floating-point
// operations to the meter, which it finds through the same thread-local variable as the allocator does.
std::unique_ptr<at::ObserverContext> count_flops(const at::RecordFunction& function) {
  const std::string name = function.name();
  // Elementwise operations are not counted, because they are memory-bound.
  const bool is_counted = name != "aten::mul" && name != "aten::add";
  auto* const meter =
      dynamic_cast<AllocationMeter*>(c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::PROFILER_STATE));
  if (meter != nullptr && is_counted)
    meter->flops += static_cast<double>(
        torch::profiler::impl::computeFlops(name, torch::profiler::impl::saveExtraArgs(function)));
  return nullptr;
}

class FlopsCounting {
 public:
  FlopsCounting()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(count_flops).needsInputs(true).scopes({at::RecordScope::FUNCTION}))) {}
  ~FlopsCounting() { at::removeCallback(handle_); }
  FlopsCounting(const FlopsCounting&) = delete;
  FlopsCounting& operator=(const FlopsCounting&) = delete;

 private:
  at::CallbackHandle handle_;
};

// Converts the modules' tensors to the run's element types during the lifetime of this object.
class ConversionGuard {
 public:
  ConversionGuard(const ModuleModel& model, at::ScalarType type, at::Device device) {
    for (const ModulePart& part : model.parts) {
      for (const auto& [name, tensor] : trained_parameters(part)) convert(tensor, type, device);
      for (const at::Tensor& tensor : other_tensors(part)) convert(tensor, type, device);
    }
  }
  ~ConversionGuard() {
    for (auto& [tensor, before] : tensors_) tensor.set_data(before);
  }
  ConversionGuard(const ConversionGuard&) = delete;
  ConversionGuard& operator=(const ConversionGuard&) = delete;

 private:
  void convert(const at::Tensor& tensor, at::ScalarType type, at::Device device) {
    tensors_.emplace_back(tensor, tensor.variable_data());
    tensor.set_data(converted(tensor.variable_data(), type, device).clone());
  }
  std::vector<std::pair<at::Tensor, at::Tensor>> tensors_;
};

// Two batches that differ in all samples except the first.
struct Batches {
  at::Tensor first_batch, second_batch;
};

struct PartMeasurement {
  std::int64_t graph_bytes = 0, scratch_bytes = 0;
  double flops = 0;
};

class PartInspector {
 public:
  PartInspector(const ModuleModel& model, const ModuleSample& example, ModuleDescription& description)
      : model_(model), description_(description) {
    const at::Tensor input = converted(example.input, description.types.element, description.device);
    const at::Tensor half = input.is_floating_point() ? input.div(2) : input;
    batches_ = {at::stack({input, input}), at::stack({input, half})};
    target_ = example.target.to(description.device);
  }

  void run(std::size_t part) {
    CustomBlock& block = description_.spec.custom.emplace_back();
    block.name = model_.parts[part].name;
    description_.input_shapes.push_back(batches_.first_batch.sizes().slice(1).vec());
    block.inputs = batches_.first_batch[0].numel();
    block.has_index_inputs = !batches_.first_batch.is_floating_point();
    name_tensors(part, block);
    const Batches outputs = check(part);
    measure(part, block);
    if (part + 1 == model_.parts.size()) return;
    block.outputs = outputs.first_batch[0].numel();
    batches_ = outputs;
  }

 private:
  void name_tensors(std::size_t part, CustomBlock& block) {
    for (const auto& [name, tensor] : trained_parameters(model_.parts[part])) {
      if (!known_tensors_.insert(tensor.unsafeGetTensorImpl()).second)
        throw UserError(
            "{}: parameter {} also belongs to an earlier part; put all modules that share it into one part",
            model_.name, name);
      // If there are more dimensions than a Shape supports, the trailing dimensions are merged. Rows are
      // preserved.
      Shape shape{1};
      for (std::int64_t d = 0; d < tensor.dim(); ++d) {
        if (d >= kMaxDims)
          shape[kMaxDims - 1] *= tensor.size(d);
        else
          shape.num_dims = static_cast<int>(d) + 1, shape[static_cast<int>(d)] = tensor.size(d);
      }
      block.tensors.push_back({name, shape, tensor.dim() > 1});
    }
  }

  // Returns the outputs for both batches, after checking that they depend only on the sample.
  Batches check(std::size_t part) const {
    const ModulePart& part_info = model_.parts[part];
    const std::vector<at::Tensor> untrained_tensors = other_tensors(part_info);
    std::vector<at::Tensor> original_buffers;
    for (const at::Tensor& tensor : untrained_tensors) original_buffers.push_back(tensor.detach().clone());
    const at::Tensor first_output = output(part, batches_.first_batch),
                     repeated_output = output(part, batches_.first_batch),
                     other_output = output(part, batches_.second_batch);
    for (std::size_t i = 0; i < untrained_tensors.size(); ++i)
      if (!at::equal(untrained_tensors[i], original_buffers[i]))
        throw UserError(
            "{}: part {} changes its buffers (batch statistics?), so training would depend on how batches "
            "are split; use a norm over each sample, such as GroupNorm or LayerNorm",
            model_.name, part_info.name);
    if (!at::equal(first_output, repeated_output))
      throw UserError(
          "{}: part {} is random (dropout?): the same input gave two different outputs; remove the random "
          "part",
          model_.name, part_info.name);
    if (!at::allclose(first_output[0], other_output[0], 1e-3, 1e-5, true))
      throw UserError(
          "{}: part {} returns different outputs for the same sample in different batches; use a norm over "
          "each sample",
          model_.name, part_info.name);
    return {first_output, other_output};
  }

  at::Tensor output(std::size_t part, const at::Tensor& input) const {
    const at::Tensor result = run_forward(model_, part, input, {}).output;
    if (result.dim() < 1 || result.size(0) != input.size(0) || result.numel() == 0 ||
        !result.is_floating_point())
      throw UserError(
          "{}: part {}: expected a result of shape [{}, …] and a floating-point type, got {} for {} samples",
          model_.name, model_.parts[part].name, input.size(0),
          fmt::format("[{}]", fmt::join(result.sizes(), ", ")), input.size(0));
    return result;
  }

  void measure(std::size_t part, CustomBlock& block) const {
    constexpr std::int64_t kFewSamples = 2, kMoreSamples = 4;
    const PartMeasurement few = measure_once(part, kFewSamples), more = measure_once(part, kMoreSamples);
    const auto linear_fit = [](std::int64_t at_few, std::int64_t at_more) {
      const std::int64_t step = std::max<std::int64_t>(
          0, (at_more - at_few + kMoreSamples - kFewSamples - 1) / (kMoreSamples - kFewSamples));
      return SampleBytes{std::max<std::int64_t>(0, at_more - kMoreSamples * step), step};
    };
    block.graph = linear_fit(few.graph_bytes, more.graph_bytes),
    block.graph_work = linear_fit(few.scratch_bytes, more.scratch_bytes);
    block.forward_flops = more.flops / kMoreSamples;
  }

  PartMeasurement measure_once(std::size_t part, std::int64_t samples) const {
    const bool is_last = part + 1 == model_.parts.size();
    std::vector<at::Tensor> parameters;
    for (const auto& [name, tensor] : trained_parameters(model_.parts[part])) parameters.push_back(tensor);
    const at::Tensor input =
        at::stack(std::vector(static_cast<std::size_t>(samples), batches_.first_batch[0]));
    ForwardOptions options{
        .is_recorded = true, .wants_input_gradient = part > 0, .wide = description_.types.wide};
    if (is_last) options.targets = at::stack(std::vector(static_cast<std::size_t>(samples), target_));
    const auto meter = std::make_shared<AllocationMeter>();
    ModuleForward forward;
    {
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
      const FlopsCounting counting;
      forward = run_forward(model_, part, input, options);
    }
    // In training, this gradient is in the engine's arena, so its memory is not counted here.
    const at::Tensor gradient = at::ones_like(forward.output);
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, meter);
    forward.output.reset();
    const std::int64_t graph_bytes_after_forward = meter->current;
    const ModuleGradients gradients = run_backward(std::move(forward.graph), gradient, parameters);
    return {graph_bytes_after_forward, meter->peak - graph_bytes_after_forward, meter->flops};
  }

  const ModuleModel& model_;
  ModuleDescription& description_;
  Batches batches_;
  at::Tensor target_;
  std::set<const void*> known_tensors_;
};

void check_complete(const ModuleModel& model, const ModuleSample& example) {
  if (model.parts.empty()) throw UserError("{}: a module model needs at least one part", model.name);
  if (model.loss == nullptr) throw UserError("{}: a module model needs a loss", model.name);
  for (const ModulePart& part : model.parts)
    if (part.forward == nullptr)
      throw UserError("{}: part {} has no forward function", model.name, in_quotes(part.name));
  if (!example.input.defined() || !example.target.defined() || example.input.numel() == 0)
    throw UserError("{}: sample 0: expected a non-empty input and a target", model.name);
  if (!example.input.is_floating_point() && example.input.scalar_type() != at::kLong)
    throw UserError("{}: inputs must be floating-point numbers or 64-bit integers", model.name);
}

}  // namespace

ModuleDescription describe(const ModuleModel& model, const ModuleSample& example, Precision precision,
                           at::Device device) {
  check_complete(model, example);
  ModuleDescription description;
  description.types = types_of(precision), description.device = device;
  description.target_shape = example.target.sizes().vec();
  description.spec.name = model.name;
  description.spec.is_tied = false, description.spec.layers = 0, description.spec.max_positions = 1;
  const ConversionGuard modules(model, description.types.element, device);
  PartInspector inspector(model, example, description);
  for (std::size_t part = 0; part < model.parts.size(); ++part) try {
      inspector.run(part);
    } catch (const c10::Error& error) {
      throw UserError("{}: part {} failed in its trial run: {}", model.name,
                      in_quotes(model.parts[part].name), in_quotes(error.what_without_backtrace(), 300));
    }
  validate(description.spec);
  return description;
}

}  // namespace optimus
