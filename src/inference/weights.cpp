// Implements weights.h.
#include "inference/weights.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <type_traits>

#include "base/error.h"

namespace optimus {
namespace {

// `values` covers the box `outer`. Returns the slice that covers `inner`.
at::Tensor slice_of_box(at::Tensor values, const Box& outer, const Box& inner) {
  ensure(outer.contains(inner), "{} is not inside {}", text(inner), text(outer));
  for (int d = 0; d < outer.num_dims; ++d)
    values = values.narrow(d, inner[d].begin - outer[d].begin, inner[d].size());
  return values;
}

// Fills the master weights of redundant shard copies.
template <typename Real>
void load_copies(const WeightSource& source, Parameters& copies) {
  constexpr at::ScalarType kType = std::is_same_v<Real, double> ? at::kDouble : at::kFloat;
  for (const LogicalTensor& tensor : copies.tensors()) {
    at::Tensor master = copies.master(tensor.name);
    if (!master.defined() || master.numel() == 0) continue;
    at::Tensor values = at::empty(master.sizes(), kType);
    source.read_box(tensor, copies.box(tensor.name, &BlockState::masters),
                    std::span(values.data_ptr<Real>(), static_cast<std::size_t>(values.numel())));
    master.copy_(values);
  }
}

// Fills the weights and the master weights that this rank owns.
template <typename Real>
void load(const WeightSource& source, Parameters& parameters, EventSink& events) {
  constexpr at::ScalarType kType = std::is_same_v<Real, double> ? at::kDouble : at::kFloat;
  const auto total = std::ssize(parameters.tensors());
  std::int64_t num_done = 0;
  if (parameters.copies() != nullptr) load_copies<Real>(source, *parameters.copies());
  for (const LogicalTensor& tensor : parameters.tensors()) {
    events.report(Progress{"loading", num_done++, total, "tensors"});
    at::Tensor weight = parameters.weight(tensor.name), master = parameters.master(tensor.name);
    if (!weight.defined()) continue;  // belongs to another stage
    const Box box = parameters.box(tensor.name, &BlockState::weights);
    if (box.is_empty()) continue;
    at::Tensor values = at::empty(weight.sizes(), kType);
    source.read_box(tensor, box,
                    std::span(values.data_ptr<Real>(), static_cast<std::size_t>(values.numel())));
    const Box own_box = parameters.box(tensor.name, &BlockState::masters);
    if (!own_box.is_empty()) master.copy_(slice_of_box(values, box, own_box));
    // Rounds through the type of the master weights, as an optimizer update does.
    if (!weight.is_alias_of(master)) weight.copy_(values.to(master.scalar_type()));
  }
}

template <typename Real>
void copy_master(const Parameters& parameters, const std::string& name, const Box& box, std::span<Real> out) {
  const Box own_box = parameters.box(name, &BlockState::masters);
  const at::Tensor values = slice_of_box(parameters.master(name), own_box, box);
  ensure(values.numel() == std::ssize(out), "{} values for {} of {}", values.numel(), out.size(), name);
  at::from_blob(out.data(), values.sizes(), std::is_same_v<Real, double> ? at::kDouble : at::kFloat)
      .copy_(values);
}

}  // namespace

void load_weights(const WeightSource& source, Parameters& parameters, EventSink& events) {
  if (source.type() == ElementType::f64) return load<double>(source, parameters, events);
  load<float>(source, parameters, events);
}

void ParameterWeights::read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const {
  copy_master(parameters_, tensor.name, box, out);
}
void ParameterWeights::read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const {
  copy_master(parameters_, tensor.name, box, out);
}

}  // namespace optimus
