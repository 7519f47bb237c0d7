// Copies weights between files and an engine's memory.
#pragma once

#include "base/event.h"
#include "checkpoint/open_model.h"
#include "engine/parameters.h"

namespace optimus {

// Fills all parameters of this rank and reads no others from `source`. Holds at most one additional tensor in
// memory. Throws ReportedError.
void load_weights(const WeightSource& source, Parameters& parameters, EventSink& events);

// Makes the master weights of `parameters`, which are not rounded to the training precision, available as a
// WeightSource. `parameters` must outlive this object.
class ParameterWeights final : public WeightSource {
 public:
  ParameterWeights(const Parameters& parameters, Precision precision)
      : parameters_(parameters), precision_(precision) {}
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const override;
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const override;
  ElementType type() const override {
    return precision_ == Precision::fp64 ? ElementType::f64 : ElementType::f32;
  }
  std::string name() const override { return "the trained parameters"; }

 private:
  const Parameters& parameters_;
  const Precision precision_;
};

}  // namespace optimus
