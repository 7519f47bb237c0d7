// Parameters: everything of a model that outlives a step, on one device. Each block's weights, gradient accumulators, masters
// and moments are flat buffers (block_shape.h says what lies where), so that updates, reductions and transfers work on buffers;
// blocks see tensors as views into them.
//
// With fp64 and fp32 the master is the weight. Padding between tensors is zero and stays zero.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/block_shape.h"
#include "engine/device.h"

namespace optimus {

// What is held: all that training needs; weights alone (gradients and moments are then undefined, and masters are weights); or
// nothing at first, and then, block by block, what somebody who moves state asks for (switching/move.h). copies: nothing at first, of the
// shards whose updates this device repeats (Plan::buddy); see Parameters::copies().
enum class Keeping { training, weights, nothing, copies };

// With ZeRO some of these hold the device's shard only: moments and masters from stage 1 on, gradients from 2, weights with 3. Where
// masters are the weights, they lie as weights do.
struct BlockState {
  at::Tensor weights;                 // element type
  at::Tensor gradients;               // wide type, as all that follow
  at::Tensor masters, first, second;  // masters may be weights
};

// A tensor of a block as its computation uses it: views into whole buffers.
struct WeightView {
  at::Tensor weight, gradient;  // undefined when there is none
};

// The tensors of one block, by their names without the layer's: "attention.q.weight", and those that lie side by side under a
// joint name, "attention.qkv.weight", "mlp.gate_up.bias".
class BlockViews {
 public:
  const WeightView& operator[](
      std::string_view name) const;  // undefined ones when there is none of that name
  void add(std::string name, WeightView view) { views_.emplace_back(std::move(name), std::move(view)); }

 private:
  std::vector<std::pair<std::string, WeightView>> views_;
  WeightView none_;
};

class Parameters {
 public:
  // Allocates; values are zero until initialize() or set(). The plan must be valid for the model; rank is one of its devices.
  Parameters(const Plan& plan, const ModelSpec& model, int rank, at::Device device,
             Keeping keeping = Keeping::training);

  // Masters and moments of the shards whose updates are repeated here, where the plan has buddies; null elsewhere. They are held and
  // let go of with the rest, and filled with it: their boxes, views and updates are those of the device that they belong to. Weights
  // and gradients of them there are none, nor masters that are weights and lie whole in this device's own.
  Parameters* copies() { return copies_.get(); }
  const Parameters* copies() const { return copies_.get(); }

  // Of Keeping::nothing: masters and moments of one block, zero or as they lie elsewhere; release() lets them go, and everything else of
  // it. After the last, complete() adds weights, rounded from masters as far as these are held, and gradients.
  void hold_state(int block);
  void take_state(int block, const Parameters& from);
  // Lets go of all but masters and moments.
  void keep_state();
  void release(int block);
  void complete();

  // Keyed by (seed, tensor name): the same values whoever holds which part. Every rank computes its own part.
  void initialize(std::int64_t seed);

  const std::vector<LogicalTensor>& tensors() const { return tensors_; }
  // A logical tensor's held part in one of the buffers: the tensor-parallel part, or the rows of the own shard. Undefined when
  // the device holds nothing of it.
  at::Tensor weight(const std::string& name) const { return view(name, &BlockState::weights); }
  at::Tensor gradient(const std::string& name) const { return view(name, &BlockState::gradients); }
  at::Tensor master(const std::string& name) const { return view(name, &BlockState::masters); }
  at::Tensor view(const std::string& name, at::Tensor BlockState::*member) const;
  // The box that such a view holds. Masters that are weights are held as weights are.
  Box box(const std::string& name, at::Tensor BlockState::*member) const;
  // Whose view has this box of masters or moments: these parameters, their copies, or nobody (null).
  const Parameters* holder(const std::string& name, at::Tensor BlockState::*member, const Box& box) const;

  // The views that a block computes with, in given whole buffers (gradients may be undefined).
  BlockViews views(int block, const at::Tensor& weights, const at::Tensor& gradients) const;

  // One logical tensor from the values of its whole, in row-major order: masters and weights, as far as they are held.
  void set(const std::string& name, std::span<const double> values);
  void set(const std::string& name, std::span<const float> values);
  std::vector<double> get(const std::string& name, at::Tensor BlockState::*member) const;
  // From masters that were set as views. With ZeRO 1 and 2 other shards of the weights come from elsewhere
  // (Engine::gather_weights).
  void round_masters();

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  BlockState& block(int index) { return blocks_[static_cast<std::size_t>(index)]; }
  const BlockState& block(int index) const { return blocks_[static_cast<std::size_t>(index)]; }
  const BlockShape& shape(int index) const { return shapes_[static_cast<std::size_t>(index)]; }
  std::span<const StateRun> updates(int block) const { return updates_[static_cast<std::size_t>(block)]; }
  std::span<const StateRun> counted(int block) const { return counted_[static_cast<std::size_t>(block)]; }
  const HeldTensor* find(const std::string& name) const;  // null when the device holds nothing of it
  // Whose buffers a held tensor lies in. A tied embedding lies with the head in a stage that has no first block.
  int block_of(const std::string& name) const { return places_.at(name).first; }
  void zero_gradients();
  Bytes bytes() const;

 private:
  at::Tensor zeros(int block, StateKind kind, at::ScalarType type) const;
  void hold_copy(int block);
  bool is_sharded(const HeldTensor& held, at::Tensor BlockState::*member) const;
  void set_from(const std::string& name, const at::Tensor& whole);

  const std::vector<LogicalTensor> tensors_;
  const ElementTypes types_;
  const at::Device device_;
  const Keeping keeping_;
  std::vector<BlockShape> shapes_;
  std::vector<BlockState> blocks_;
  std::vector<std::vector<StateRun>> updates_, counted_;
  std::map<std::string, std::pair<int, std::size_t>> places_;  // name -> block, index into its shape
  std::unique_ptr<Parameters> copies_;
};

}  // namespace optimus
