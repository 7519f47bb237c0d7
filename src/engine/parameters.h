// Parameters: everything of a model that outlives a step, on one device. Each block's weights, gradient accumulators, masters
// and moments are flat buffers with the same element offsets (layout/storage.h), so that updates, reductions and transfers work
// on buffers; blocks see tensors as views into them.
//
// With fp64 and fp32 the master is the weight. Padding between tensors is zero and stays zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <span>
#include <string>
#include <vector>

#include "engine/device.h"
#include "layout/storage.h"
#include "plan/layouts.h"

namespace optimus {

// What is held: all that training needs, or weights alone (gradients and moments are then undefined, and masters are weights).
enum class Keeping { training, weights };

struct BlockState {
  at::Tensor weights;                 // element type
  at::Tensor gradients;               // wide type, as all that follow
  at::Tensor masters, first, second;  // masters may be weights
};

class Parameters {
 public:
  // Allocates; values are zero until initialize() or set(). The plan must be valid for the model.
  Parameters(const Plan& plan, const ModelSpec& model, int rank, at::Device device,
             Keeping keeping = Keeping::training);

  // Keyed by (seed, tensor name): the same values whoever holds which part.
  void initialize(std::int64_t seed);

  const std::vector<LogicalTensor>& tensors() const { return tensors_; }
  // Views of a logical tensor, or of several that lie side by side ("layers.0.attention.qkv.weight", "…mlp.up_gate.weight":
  // see fused_name). Undefined when the model has none of that name.
  at::Tensor weight(const std::string& name) const { return view(name, &BlockState::weights); }
  at::Tensor gradient(const std::string& name) const { return view(name, &BlockState::gradients); }
  at::Tensor master(const std::string& name) const { return view(name, &BlockState::masters); }
  at::Tensor view(const std::string& name, at::Tensor BlockState::*member) const;

  // One logical tensor from values in row-major order: masters and weights.
  void set(const std::string& name, std::span<const double> values);
  void set(const std::string& name, std::span<const float> values);
  std::vector<double> get(const std::string& name, at::Tensor BlockState::*member) const;
  void round_masters();  // to weights, after masters were set as views

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  BlockState& block(int index) { return blocks_[static_cast<std::size_t>(index)]; }
  const BlockState& block(int index) const { return blocks_[static_cast<std::size_t>(index)]; }
  // Ranges of a block's buffers with and without weight decay, in order, padding included.
  struct Segment {
    std::int64_t begin = 0, end = 0;
    bool has_weight_decay = false;
  };
  std::span<const Segment> segments(int block) const { return segments_[static_cast<std::size_t>(block)]; }
  void zero_gradients();
  Bytes bytes() const;

 private:
  struct View {
    int block = 0;
    std::int64_t offset = 0;
    std::vector<std::int64_t> shape;
  };
  void set_from(const std::string& name, const void* values, std::int64_t count, at::ScalarType type);
  void add_views(const Storage& storage);
  void add_segments();

  std::vector<LogicalTensor> tensors_;
  std::map<std::string, View> views_;
  std::vector<BlockState> blocks_;
  std::vector<std::vector<Segment>> segments_;
  at::Device device_;
};

}  // namespace optimus
