// Implements compare_logits.h.
#include "inference/compare_logits.h"

#include <ATen/ops/norm.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/random.h"
#include "engine/engine.h"
#include "inference/inference.h"
#include "inference/weights.h"
#include "switching/memory.h"

namespace optimus {
namespace {

constexpr std::int64_t kTokens = 32;

// The weights of `source`, rounded to the type in which they will be stored.
class RoundedWeights final : public WeightSource {
 public:
  RoundedWeights(const WeightSource& source, ElementType stored) : source_(source), stored_(stored) {}
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const override {
    round(tensor, box, out);
  }
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const override {
    round(tensor, box, out);
  }
  ElementType type() const override { return source_.type(); }
  std::string name() const override { return source_.name(); }

 private:
  template <typename Real>
  void round(const LogicalTensor& tensor, const Box& box, std::span<Real> out) const {
    source_.read_box(tensor, box, out);
    std::vector<std::byte> bytes(out.size() * static_cast<std::size_t>(width(stored_)));
    encode(stored_, std::span<const Real>(out), bytes);
    decode(stored_, bytes, out);
  }
  const WeightSource& source_;
  const ElementType stored_;
};

Batch random_tokens(const ModelSpec& spec, const Plan& plan) {
  Sample sample;
  const RandomKey key = RandomKey(1).derive("compare logits");
  for (std::int64_t i = 0; i < plan.sequence_length; ++i) {
    sample.inputs.push_back(static_cast<TokenId>(
        random_below(key, static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(spec.vocab))));
    sample.targets.push_back(kNoTarget);
    sample.positions.push_back(static_cast<std::int32_t>(i));
  }
  return make_batch({sample}, plan, 0, 0);
}

Plan plan_of(const ModelSpec& spec, Precision precision) {
  return inference_plan(spec, precision, 1, std::min(kTokens, spec.max_positions));
}

at::Tensor logits_of(const ModelSpec& spec, const WeightSource& weights, Precision precision,
                     EventSink& events) {
  const Plan plan = plan_of(spec, precision);
  Parameters parameters(plan, spec, 0, at::Device(at::kCPU), StorageMode::weights);
  load_weights(weights, parameters, events);
  Engine engine(plan, spec, parameters, {});
  return engine.logits(random_tokens(spec, plan)).clone();
}

bool is_same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

bool needs_fp64(const OpenedModel& model) { return model.weights->type() == ElementType::f64; }

}  // namespace

LogitsComparison compare_logits(const OpenedModel& from, const OpenedModel& to, EventSink& events) {
  const Precision precision = needs_fp64(from) || needs_fp64(to) ? Precision::fp64 : Precision::fp32;
  const Bytes needed(num_parameters(from.spec) * bytes_of(precision));
  const std::optional<Bytes> free = free_memory(at::Device(at::kCPU));
  LogitsComparison result;
  if (free && needed > *free) {
    result.why_not = fmt::format("the weights need {} in {}, but only {} are free", text(needed),
                                 text(precision), text(*free));
    return result;
  }
  result.is_done = true;
  const at::Tensor to_logits = logits_of(to.spec, *to.weights, precision, events);
  const RoundedWeights rounded(*from.weights, to.weights->type());
  const at::Tensor from_logits = logits_of(from.spec, rounded, precision, events);
  result.is_equal = is_same_bits(from_logits, to_logits);
  if (from.weights->type() == to.weights->type() || !result.is_equal) return result;
  const at::Tensor unrounded_logits = logits_of(from.spec, *from.weights, precision, events);
  result.rounding =
      to_logits.sub(unrounded_logits).norm().item<double>() / unrounded_logits.norm().item<double>();
  return result;
}

}  // namespace optimus
