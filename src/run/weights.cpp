// See weights.h.
#include "run/weights.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {
namespace {

template <typename Real>
void load(const WeightSource& source, Parameters& parameters, EventSink& events) {
  std::vector<Real> values;
  const auto total = std::ssize(parameters.tensors());
  std::int64_t num_done = 0;
  for (const LogicalTensor& tensor : parameters.tensors()) {
    events.report(Progress{"loading", num_done++, total, "tensors"});
    values.resize(static_cast<std::size_t>(tensor.shape.num_elements()));
    source.read(tensor, std::span<Real>(values));
    parameters.set(tensor.name, std::span<const Real>(values));
  }
}

template <typename Real>
void copy_master(const Parameters& parameters, const std::string& name, std::span<Real> out) {
  const std::vector<double> values = parameters.get(name, &BlockState::masters);
  ensure(values.size() == out.size(), "{} values for {} of {}", values.size(), out.size(), name);
  std::transform(values.begin(), values.end(), out.begin(),
                 [](double value) { return static_cast<Real>(value); });
}

}  // namespace

void load_weights(const WeightSource& source, Parameters& parameters, EventSink& events) {
  if (source.type() == ElementType::f64) return load<double>(source, parameters, events);
  load<float>(source, parameters, events);
}

void ParameterWeights::read(const LogicalTensor& tensor, std::span<float> out) const {
  copy_master(parameters_, tensor.name, out);
}
void ParameterWeights::read(const LogicalTensor& tensor, std::span<double> out) const {
  copy_master(parameters_, tensor.name, out);
}

}  // namespace optimus
