// Parameters: all data of a model on one device that outlives a step. Weights, gradient accumulators, masters
// and moments of each block are flat buffers (laid out by block_shape.h), so that updates, reductions and
// transfers work on whole buffers. Blocks access tensors as views into these buffers.
//
// With fp64 and fp32 the master is the weight. Padding between tensors is always zero.
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

// Selects the memory that Parameters allocates:
//   training  everything that training needs
//   weights   only weights; gradients and moments are undefined, and masters are the weights
//   nothing   initially nothing; the code that moves state allocates block by block (switching/move.h)
//   copies    initially nothing; later masters and moments of the shards whose updates this device repeats
//             (Plan::copy_distance, Parameters::copies())
enum class StorageMode { training, weights, nothing, copies };

// With ZeRO, some of these contain only the device's shard: moments and masters from stage 1 on, gradients
// from stage 2 on, weights in stage 3. Masters that are the weights are laid out like weights.
struct BlockState {
  at::Tensor weights;                               // element type
  at::Tensor gradients;                             // wide type, like the members below
  at::Tensor masters, first_moment, second_moment;  // in fp32 and fp64, the masters are the weights
};

// Weight and gradient of one tensor of a block, as views into whole buffers.
struct WeightView {
  at::Tensor weight, gradient;  // undefined if absent
};

// The tensors of one block, by their names without the layer prefix, such as "attention.q.weight". Tensors
// that are adjacent in memory also have the name of a fused tensor, such as "attention.qkv.weight" or
// "mlp.gate_up.bias".
class BlockViews {
 public:
  const WeightView& operator[](std::string_view name) const;  // undefined views for an unknown name
  void add(std::string name, WeightView view) { views_.emplace_back(std::move(name), std::move(view)); }

 private:
  std::vector<std::pair<std::string, WeightView>> views_;
  WeightView undefined_view_;
};

class Parameters {
 public:
  // Allocates the buffers. Values are zero until initialize() or set() is called. The plan must be valid for
  // the model, and rank must be one of its devices.
  Parameters(const Plan& plan, const ModelSpec& model, int rank, at::Device device,
             StorageMode storage_mode = StorageMode::training);

  // Masters and moments of the shards whose updates this device repeats. Null if the plan has no redundant
  // copies. They are allocated, released and filled together with these parameters. Their boxes, views and
  // updates are those of the owning device. Copies have no weights and no gradients. They also have no
  // masters if the masters are weights that this device stores completely anyway.
  Parameters* copies() { return copies_.get(); }
  const Parameters* copies() const { return copies_.get(); }

  // These functions are for StorageMode::nothing. allocate_state() allocates the masters and moments of one
  // block, with values 0. adopt_state() shares the masters and moments of `from`. release() frees everything
  // of the block. After the last block, complete() adds gradients, and weights that are rounded from the
  // masters of this device.
  void allocate_state(int block);
  void adopt_state(int block, const Parameters& from);
  // Frees everything except masters and moments.
  void release_all_but_state();
  void release(int block);
  void complete();

  // Sets initial values. They depend on the seed and the tensor's name, but not on the layout. Every rank
  // computes its own part.
  void initialize(std::int64_t seed);

  const std::vector<LogicalTensor>& tensors() const { return tensors_; }
  // Return this device's part of a logical tensor in one of the buffers. This is the tensor-parallel part or,
  // if the buffer is sharded, the rows of that part in this device's shard. Undefined if no part of the
  // tensor is on the device.
  at::Tensor weight(const std::string& name) const { return view(name, &BlockState::weights); }
  at::Tensor gradient(const std::string& name) const { return view(name, &BlockState::gradients); }
  at::Tensor master(const std::string& name) const { return view(name, &BlockState::masters); }
  at::Tensor view(const std::string& name, at::Tensor BlockState::*member) const;
  // Returns the box of the logical tensor that view() contains. Masters that are weights have the boxes of
  // weights.
  Box box(const std::string& name, at::Tensor BlockState::*member) const;
  // Returns the object whose view of masters or moments contains `box`: these parameters, their copies, or
  // null if neither contains the box.
  const Parameters* holder(const std::string& name, at::Tensor BlockState::*member, const Box& box) const;

  // Returns the views that a block uses for computation, in the given whole buffers (`gradients` may be
  // undefined).
  BlockViews views(int block, const at::Tensor& weights, const at::Tensor& gradients) const;

  // Sets the masters and weights of this device's part of a logical tensor. `values` are the values of the
  // whole tensor in row-major order.
  void set(const std::string& name, std::span<const double> values);
  void set(const std::string& name, std::span<const float> values);
  std::vector<double> get(const std::string& name, at::Tensor BlockState::*member) const;
  // Rounds weights from the masters of this device. Must be called after masters were set through views. With
  // ZeRO 1 and 2, the weights of other shards come from Engine::gather_weights.
  void round_masters();

  int num_blocks() const { return static_cast<int>(blocks_.size()); }
  BlockState& block(int index) { return blocks_[static_cast<std::size_t>(index)]; }
  const BlockState& block(int index) const { return blocks_[static_cast<std::size_t>(index)]; }
  const BlockShape& shape(int index) const { return shapes_[static_cast<std::size_t>(index)]; }
  std::span<const StateRange> update_ranges_of(int block) const {
    return update_ranges_[static_cast<std::size_t>(block)];
  }
  std::span<const StateRange> counted_ranges_of(int block) const {
    return counted_ranges_[static_cast<std::size_t>(block)];
  }
  const LocalTensor* find(const std::string& name) const;  // null if no part of the tensor is on the device
  // Returns the block whose buffers contain a tensor. In a stage without the first block, a tied embedding is
  // stored with the head.
  int block_of(const std::string& name) const { return tensor_locations_.at(name).first; }
  void zero_gradients();
  Bytes bytes() const;

 private:
  at::Tensor zeros(int block, StateKind kind, at::ScalarType type) const;
  void allocate_copy(int block);
  bool is_sharded(const LocalTensor& local_tensor, at::Tensor BlockState::*member) const;
  void set_from(const std::string& name, const at::Tensor& whole);

  const std::vector<LogicalTensor> tensors_;
  const ElementTypes types_;
  const at::Device device_;
  const StorageMode storage_mode_;
  std::vector<BlockShape> shapes_;
  std::vector<BlockState> blocks_;
  std::vector<std::vector<StateRange>> update_ranges_, counted_ranges_;  // [block], see block_shape.h
  // Maps a tensor's name to its block and its index into the tensors of the block's shape.
  std::map<std::string, std::pair<int, std::size_t>> tensor_locations_;
  std::unique_ptr<Parameters> copies_;
};

}  // namespace optimus
