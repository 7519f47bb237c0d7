// Communication of weights and gradients between the devices that share a block's state: gathers of shards,
// and reductions of gradients over shards, copies and tensor-parallel ranks. begin() prepares the data and
// starts the operation; end() stores the received data after it has completed.
//
//   zero 0   all-reduce over copies, in place
//   zero 1   reduce-scatter over shards: each device keeps its own shard, at the start of the whole gradient
//            buffer; the other elements are no longer needed
//   zero 2,3 like zero 1, but for the whole gradients of each micro-batch; the result is added to this
//            device's shard
//
// Before this reduction, tensor-parallel ranks sum the gradients that each of them has computed only
// partially. After it, gradients of tensors that other stages or pipelines also store are summed over these
// (schedule/shared_sums.h). If the plan has redundant copies, a complete shard is sent to the device that
// repeats its update (Parameters::copies). Read next: block_shape.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "engine/fp8_shards.h"
#include "engine/parameters.h"
#include "schedule/program.h"
#include "schedule/shared_sums.h"

namespace optimus {

// Buffers of one instruction. A buffer is undefined if the instruction does not use it.
struct StateBuffers {
  at::Tensor whole;           // gathered weights or one micro-batch's gradients, flat and in whole order
  at::Tensor exchange;        // concatenated shards, or destination of the weights of a repeated update
  at::Tensor copy_gradients;  // gradients of the shard whose update is repeated
};

class StateExchange {
 public:
  // `comm` may be null if the program has no communication. All arguments must outlive this object.
  StateExchange(const Plan& plan, const ModelSpec& model, const Program& program, Parameters& parameters,
                Comm* comm);

  // Enables gathering the weights of fp8 layers in fp8 (fp8_shards.h), in steps that have scales.
  void gather_in_fp8(Fp8Scales& scales, const Kernels& kernels);

  std::unique_ptr<Pending> begin(const Instruction& instruction, const StateBuffers& buffers);
  void end(const Instruction& instruction, const StateBuffers& buffers);

  // Returns the reduced gradients, [shard_elements], of the shard whose update is repeated. Valid after they
  // were received.
  at::Tensor copied_gradients(int block, const StateBuffers& buffers) const;
  // Returns memory for the weights that a repeated update writes. These weights are never read.
  at::Tensor copied_weights(int block, const StateBuffers& buffers) const;

  // Returns the offset, in elements, of the tied embedding in the buffer with the gathered weights of a head.
  std::int64_t tied_offset() const { return parameters_.shape(head_).whole_elements; }

 private:
  // Rows of a tensor whose gradient is summed over several tensor-parallel ranks.
  struct Rows {
    std::size_t tensor = 0;  // index into the tensors of the block's shape
    Span rows;
  };
  BlockShape gathered_shape(int block) const;
  const Fp8Shards* fp8_shards(int block) const;  // null if this block is currently not gathered in fp8
  std::vector<Rows> partial_rows(const Instruction& instruction) const;
  at::Tensor whole_gradients(const Instruction& instruction, const StateBuffers& buffers) const;
  // Returns the gradients of this device's shard, or all gradients if nothing is sharded.
  at::Tensor own_gradients(int block) const;
  template <typename Copy>
  void for_each_partial(const Instruction& instruction, const StateBuffers& buffers, Copy copy);
  std::unique_ptr<Pending> begin_gather(const Instruction& instruction, const StateBuffers& buffers);
  std::unique_ptr<Pending> begin_reduce(const Instruction& instruction, const StateBuffers& buffers);
  std::unique_ptr<Pending> begin_sync(const Instruction& instruction, const StateBuffers& buffers);
  std::unique_ptr<Pending> begin_copy_exchange(const Instruction& instruction, const StateBuffers& buffers);
  void end_sync(const Instruction& instruction, const StateBuffers& buffers);
  std::string description_of(const Instruction& instruction) const;
  // A box of this device's gradients that is summed with those of other stages or pipelines.
  struct SharedPiece {
    at::Tensor gradient;  // a view
    bool contributes = true;
  };
  void find_shared_pieces();
  SharedPiece shared_piece(const TensorBox& shared, const std::vector<int>& members) const;
  std::int64_t end_of_shared(int block) const;

  const Plan& plan_;
  const ModelSpec& model_;
  const Program& program_;
  const Stage& stage_;
  Parameters& parameters_;
  Comm* comm_;
  const int head_;
  const at::ScalarType element_, wide_;
  Fp8Scales* scales_ = nullptr;
  const Kernels* kernels_ = nullptr;
  std::map<int, Fp8Shards> fp8_shards_;  // by block
  // [(block, members)]
  std::map<std::pair<int, std::vector<int>>, std::vector<SharedPiece>> shared_pieces_;
};

}  // namespace optimus
