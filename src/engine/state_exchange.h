// Weights and gradients on their way between the devices that share a block's state: gathers of shards, sums of gradients over
// shards, copies and tensor parts. Begin prepares what is sent, end puts what came where it belongs; in between the Comm works.
//
//   zero 0   sum over copies, in place
//   zero 1   sum over shards: each keeps its own, at the begin of the whole gradients' buffer, whose rest is spent by then
//   zero 2,3 the same of every micro-batch's whole gradients, added to the own shard
//
// Before that, tensor parts add up what each has seen only partly. Last of all, what other stages or pipelines hold too is added
// up with them (schedule/shared_sums.h). Where the plan has buddies, a shard that is complete goes to the device that repeats its
// update (Parameters::copies). Read next: block_shape.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <vector>

#include "comm/comm.h"
#include "engine/narrow_shards.h"
#include "engine/parameters.h"
#include "schedule/program.h"
#include "schedule/shared_sums.h"

namespace optimus {

// Buffers of one instruction; undefined where it has none.
struct StateBuffers {
  at::Tensor whole;   // weights gathered for use, or one micro-batch's gradients: flat, in whole order
  at::Tensor room;    // where shards lie one behind the other; of a repeated update: where its weights go
  at::Tensor copied;  // gradients of the shard whose update is repeated
};

class StateExchange {
 public:
  // comm may be null when the program has no such instruction. All must outlive this.
  StateExchange(const Plan& plan, const ModelSpec& model, const Program& program, Parameters& parameters,
                Comm* comm);

  // From now on weights of layers in 8 bits are gathered in 8 bits (narrow_shards.h), in steps that have scales.
  void gather_narrow(Fp8Scales& scales, const Kernels& kernels);

  std::unique_ptr<Pending> begin(const Instruction& next, const StateBuffers& buffers);
  void end(const Instruction& next, const StateBuffers& buffers);

  // The reduced gradients of the shard whose update is repeated, once they have come: [shard_elements].
  at::Tensor copied_gradients(int block, const StateBuffers& buffers) const;
  // Room for the weights that come of a repeated update and that nobody wants.
  at::Tensor copied_weights(int block, const StateBuffers& buffers) const;

  // The buffer that holds a gathered head's weights ends with a tied embedding's words, from here on.
  std::int64_t tied_offset() const { return parameters_.shape(head_).whole_elements; }

 private:
  // Rows of a tensor that some tensor parts add up.
  struct Rows {
    std::size_t tensor = 0;  // of the block's shape
    Span rows;
  };
  BlockShape gathered_shape(int block) const;
  const NarrowShards* narrow_shards(int block) const;  // null: this block is gathered as it is, now
  std::vector<Rows> partial_rows(const Instruction& next) const;
  at::Tensor whole_gradients(const Instruction& next, const StateBuffers& buffers) const;
  at::Tensor own_gradients(int block) const;  // the shard, or all
  template <typename Copy>
  void for_each_partial(const Instruction& next, const StateBuffers& buffers, Copy copy);
  std::unique_ptr<Pending> begin_gather(const Instruction& next, const StateBuffers& buffers);
  std::unique_ptr<Pending> begin_reduce(const Instruction& next, const StateBuffers& buffers);
  std::unique_ptr<Pending> begin_sync(const Instruction& next, const StateBuffers& buffers);
  std::unique_ptr<Pending> begin_buddy(const Instruction& next, const StateBuffers& buffers);
  void end_sync(const Instruction& next, const StateBuffers& buffers);
  std::string what(const Instruction& next) const;
  // A piece of the own gradients that is added up with other stages or pipelines.
  struct SharedPiece {
    at::Tensor gradient;  // a view
    bool contributes = true;
  };
  void find_shared_pieces();
  SharedPiece shared_piece(const HeldBox& shared, const std::vector<int>& members) const;
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
  std::map<int, NarrowShards> narrow_;                                           // by block
  std::map<std::pair<int, std::vector<int>>, std::vector<SharedPiece>> shared_;  // by block and members
};

}  // namespace optimus
