// A block of the model as the engine runs it: hand-written forward, input gradient and weight gradient of its
// parts. Blocks are independent of schedules and communication; they read and write the tensors of a Pass.
// Under tensor parallelism a block computes its part of heads, columns and vocabulary, and the engine reduces
// or gathers the results between the parts (Exchange).
//
// Read next: layer_block.cpp (a transformer layer), engine.cpp (the caller).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/batch.h"
#include "engine/fp8_scales.h"
#include "engine/gemm.h"
#include "engine/parameters.h"
#include "engine/tensor_part.h"
#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "kernels/ring_attention.h"
#include "schedule/activation_buffer.h"
#include "schedule/program.h"

namespace optimus {

// The tensors of one activation buffer, as views into the arena.
class ActivationTensors {
 public:
  ActivationTensors() = default;
  ActivationTensors(const ActivationBuffer& activation_buffer, const at::Tensor& memory, ElementTypes types);
  const at::Tensor* find(std::string_view name) const;

 private:
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

// One micro-batch on the device: the sequences assigned to this device.
struct DeviceMicrobatch {
  const Microbatch* host = nullptr;
  at::Tensor ids, targets, positions;  // [rows]
  std::int64_t num_rows() const { return ids.defined() ? ids.numel() : 0; }
};

// Objects that stay constant during the lifetime of an engine.
struct BlockServices {
  const ModelSpec& model;
  ElementTypes types;
  const Kernels& kernels;
  const Attention& attention;
  const RingAttention& ring;
  Gemm& gemm;
  at::Tensor cosine, sine;   // RoPE tables; undefined without RoPE
  Fp8Scales* fp8 = nullptr;  // null if no layer uses fp8 GEMMs
};

class KeyValueCache;  // generation

// The operands of one instruction. Tensors are found by the names of model/operations.h.
struct Pass {
  std::vector<const ActivationTensors*> activation_buffers;
  const BlockViews* weights = nullptr;
  const at::Tensor* next_input =
      nullptr;                        // destination of the block's output: the saved input of the next block
  const at::Tensor* below = nullptr;  // destination of the block's input gradient
  const DeviceMicrobatch* microbatch = nullptr;
  std::int64_t sequence_length = 0, own_length = 0;  // of a sequence, and of its positions on this device
  std::int64_t step = 0;
  RandomKey dropout;          // derived from the seed
  bool is_training = true;    // dropout is applied
  bool is_recompute = false;  // forward: compute only what the backward needs
  int ring_step = -1;         // index of the ring step (context parallelism)
  double gradient_scale = 1;  // of the loss; 0: no gradient is needed
  // first pass of the step for this block: the tensors of overwritten_gradients() hold the sums of the
  // previous step
  bool is_first = false;
  at::Tensor* loss = nullptr;        // one fp64 element on the device, to which the sum over tokens is added
  at::Tensor* all_logits = nullptr;  // if not null: [rows, vocab], filled instead of computing a loss
  KeyValueCache* cache = nullptr;

  at::Tensor operator[](std::string_view name) const;
};

// The operands of a collective around a part. sum: all-reduce of `from` over the tensor parts, in place.
// gather: the concatenated `from` of all parts become `to`. scatter: `from` is reduced and each part receives
// its slice in `to`. ring: the first tensor of each pair in `ring_transfers` is sent to the next context part
// and received in the second tensor of the pair there. nothing: no collective is needed.
struct Exchange {
  enum class Kind { nothing, sum, gather, scatter, ring };
  Kind kind = Kind::nothing;
  at::Tensor from{}, to{};
  std::vector<std::pair<at::Tensor, at::Tensor>> ring_transfers{};
};

class Block {
 public:
  virtual ~Block() = default;
  virtual void forward(Part part, const Pass& pass) = 0;
  virtual void backward_input(Part part, const Pass& pass) = 0;
  virtual void backward_weight(Part part, const Pass& pass) = 0;
  // Tensors whose gradient the first pass overwrites completely, so that they need not be cleared.
  virtual std::vector<std::string> overwritten_gradients() const { return {}; }
  // Called before and after a collective of this block: prepare the data to send, and process the received
  // data.
  virtual Exchange begin_exchange(const Instruction& collective, const Pass& pass);
  virtual void end_exchange(const Instruction& collective, const Pass& pass);
};

std::unique_ptr<Block> make_embedding_block(const BlockServices& services, const TensorPart& part);
std::unique_ptr<Block> make_layer_block(const BlockServices& services, int block,
                                        const LayerStrategy& strategy, const TensorPart& part);
std::unique_ptr<Block> make_head_block(const BlockServices& services, const TensorPart& part);

// The dropout site of a layer (-1: the embedding) for a pass; rate 0 when not training. first_row: index of
// the tensor's first row among the rows of the micro-batch.
DropoutSite dropout_site(const Pass& pass, double rate, int layer, std::string_view site,
                         std::int64_t first_row = 0);
// A [rows, width] tensor extended up to `rows` rows into the memory that follows it: all slices of a group
// have equal length.
at::Tensor padded_to(const at::Tensor& tensor, std::int64_t rows);

}  // namespace optimus
