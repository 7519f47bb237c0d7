// Loading weights from a folder into several devices: each device reads its own boxes and nothing else.
#include "inference/weights.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "base/random.h"
#include "base/temporary_folder.h"
#include "checkpoint/convert.h"
#include "model/open.h"

namespace optimus {
namespace {

ModelSpec small_model(const std::string& preset) {
  ModelOverrides overrides{
      .layers = 2, .hidden = 24, .heads = 6, .head_dim = 4, .ffn = 22, .vocab = 53, .max_positions = 16};
  if (preset.starts_with("llama")) overrides.kv_heads = 2;
  return with_overrides(open_model(preset), overrides);
}

// Values determined by name and position; NaN outside of the stored boxes.
class KnownWeights final : public WeightSource {
 public:
  explicit KnownWeights(std::map<std::string, Box> kept = {}) : kept_(std::move(kept)) {}
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const override {
    fill(tensor, box, out);
  }
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const override {
    fill(tensor, box, out);
  }
  ElementType type() const override { return ElementType::f32; }
  std::string name() const override { return "known"; }

 private:
  template <typename Real>
  void fill(const LogicalTensor& tensor, const Box& box, std::span<Real> out) const {
    std::vector<float> values(out.size());
    fill_normal(RandomKey(5).derive(tensor.name), tensor.shape, box, std::span<float>(values));
    std::copy(values.begin(), values.end(), out.begin());
    if (kept_.empty()) return;
    ensure(box == Box(tensor.shape), "a whole tensor is written");
    const Box& own = kept_.at(tensor.name);
    const std::int64_t columns = tensor.shape.num_dims == 2 ? tensor.shape[1] : 1;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const bool is_row = own[0].begin <= at / columns && at / columns < own[0].end;
      const bool is_column = own.num_dims == 1 || (own[1].begin <= at % columns && at % columns < own[1].end);
      if (!is_row || !is_column) out[i] = std::numeric_limits<Real>::quiet_NaN();
    }
  }
  const std::map<std::string, Box> kept_;
};

// Counts how many values are read from another source.
class CountedWeights final : public WeightSource {
 public:
  explicit CountedWeights(const WeightSource& source) : source_(source) {}
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<float> out) const override {
    num_read += box.num_elements();
    source_.read_box(tensor, box, out);
  }
  void read_box(const LogicalTensor& tensor, const Box& box, std::span<double> out) const override {
    num_read += box.num_elements();
    source_.read_box(tensor, box, out);
  }
  ElementType type() const override { return source_.type(); }
  std::string name() const override { return source_.name(); }
  mutable std::int64_t num_read = 0;

 private:
  const WeightSource& source_;
};

std::unique_ptr<WeightSource> folder_of(const Path& folder, const ModelSpec& model,
                                        const WeightSource& weights) {
  RealFileSystem files;
  NullSink events;
  write_model_folder(files, folder, {model, ElementType::f32, "", {}}, weights, Bytes(30'000), events);
  return open_weights(folder.string(), open_model(folder.string()), events);
}

std::map<std::string, Box> boxes_of(const Parameters& parameters) {
  std::map<std::string, Box> result;
  for (const LogicalTensor& tensor : parameters.tensors())
    result[tensor.name] = parameters.box(tensor.name, &BlockState::weights);
  return result;
}

void expect_same(const Parameters& a, const Parameters& b) {
  for (const LogicalTensor& tensor : a.tensors())
    for (at::Tensor BlockState::*const member : {&BlockState::weights, &BlockState::masters})
      EXPECT_TRUE(at::equal(a.view(tensor.name, member), b.view(tensor.name, member))) << tensor.name;
}

TEST(LoadWeights, RankReadsOnlyItsBoxes) {
  NullSink events;
  for (const char* preset : {"gpt2", "llama3-8b"})  // transposed and untransposed weights
    for (const int zero : {0, 1, 3})
      for (const Precision precision : {Precision::fp32, Precision::bf16}) {
        const TemporaryFolder folder;
        const ModelSpec model = small_model(preset);
        UniformPlan shape{.dp = 2, .batch = 4, .sequence_length = 8, .precision = precision};
        shape.strategy.tp = 3, shape.strategy.zero = zero;
        const Plan plan = uniform_plan(model, shape);
        const auto source = folder_of(folder.path() / "whole", model, KnownWeights());
        std::int64_t num_read = 0;
        for (int rank = 0; rank < num_devices(plan); ++rank) {
          Parameters parameters(plan, model, rank, at::kCPU), own(plan, model, rank, at::kCPU);
          const CountedWeights counted(*source);
          load_weights(counted, parameters, events);
          std::int64_t held = 0;
          for (const auto& [name, box] : boxes_of(parameters)) held += box.num_elements();
          EXPECT_EQ(counted.num_read, held) << preset << " zero " << zero << " rank " << rank;
          num_read += counted.num_read;
          // A folder that has nothing else gives the same values.
          const Path poor = folder.path() / fmt::format("rank-{}", rank);
          load_weights(*folder_of(poor, model, KnownWeights(boxes_of(parameters))), own, events);
          expect_same(parameters, own);
        }
        // Sharded weights are read once; of the rest each replica reads its part.
        if (zero == 3) {
          EXPECT_LT(num_read, 2 * num_parameters(model));
        }
      }
}

TEST(LoadWeights, PartsOfAllDevicesFormWholeModel) {
  NullSink events;
  const ModelSpec model = small_model("llama3-8b");
  const TemporaryFolder folder;
  const auto source = folder_of(folder.path() / "whole", model, KnownWeights());
  UniformPlan shape{.dp = 1, .batch = 2, .sequence_length = 8, .precision = Precision::fp32};
  Parameters whole(uniform_plan(model, shape), model, 0, at::kCPU);
  load_weights(*source, whole, events);
  shape.strategy.tp = 2, shape.dp = 2, shape.strategy.zero = 3;
  const Plan plan = uniform_plan(model, shape);
  for (int rank = 0; rank < num_devices(plan); ++rank) {
    Parameters parameters(plan, model, rank, at::kCPU);
    load_weights(*source, parameters, events);
    for (const LogicalTensor& tensor : parameters.tensors()) {
      at::Tensor expected = whole.weight(tensor.name);
      const Box box = parameters.box(tensor.name, &BlockState::weights);
      for (int d = 0; d < box.num_dims; ++d) expected = expected.narrow(d, box[d].begin, box[d].size());
      EXPECT_TRUE(at::equal(parameters.weight(tensor.name), expected)) << tensor.name << " rank " << rank;
    }
  }
}

}  // namespace
}  // namespace optimus
