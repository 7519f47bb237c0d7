// A block of the model as the engine runs it, with hand-written forward, input-gradient and weight-gradient
// code for each of its parts (such as attention and mlp). Blocks do not depend on schedules or communication.
// They read and write the tensors of a Pass. Under tensor parallelism, a block computes its share of the
// heads, columns and vocabulary, and the engine reduces or gathers the results across the tensor-parallel
// ranks (Exchange).
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

// The sequences of one micro-batch that are assigned to this device, in device memory.
struct DeviceMicrobatch {
  const Microbatch* host = nullptr;
  at::Tensor ids, targets, positions;  // [rows], where rows are tokens
  std::int64_t num_rows() const { return ids.defined() ? ids.numel() : 0; }
};

// Objects shared by all blocks of an engine. They do not change during the lifetime of the engine.
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

class KeyValueCache;  // for generation (engine/cache.h)

// The operands of one instruction. operator[] finds a tensor by its name in model/operations.h.
struct Pass {
  std::vector<const ActivationTensors*> activation_buffers;
  const BlockViews* weights = nullptr;
  // destination of the block's output, which is the saved input of the next block
  const at::Tensor* next_input = nullptr;
  const at::Tensor* input_gradient = nullptr;  // destination of the block's input gradient
  const DeviceMicrobatch* microbatch = nullptr;
  std::int64_t sequence_length = 0, own_length = 0;  // positions per sequence: in total, and on this device
  std::int64_t step = 0;
  RandomKey dropout;          // key of the dropout masks
  bool is_training = true;    // whether dropout is applied
  bool is_recompute = false;  // a forward pass that computes only what the backward pass needs
  int ring_step = -1;         // index of the ring step; -1 outside ring attention
  double gradient_scale = 1;  // factor of the loss in the gradient; 0 if no gradient is needed
  // Whether this is the first pass of the step for this part of the block. If so, the gradients named by
  // overwritten_gradients() still contain the values of the previous step and must be overwritten.
  bool is_first = false;
  at::Tensor* loss = nullptr;  // one fp64 element on the device, to which the loss of all tokens is added
  at::Tensor* all_logits = nullptr;  // [rows, vocab]; if not null, filled in place of computing the loss
  KeyValueCache* cache = nullptr;

  at::Tensor operator[](std::string_view name) const;
};

// The operands of a collective before or after a part of a block:
//   nothing  no collective is needed
//   sum      all-reduce of `from` over the tensor-parallel ranks, in place
//   gather   all-gather: `to` becomes the concatenated `from` of all tensor-parallel ranks
//   scatter  reduce-scatter: `from` is summed, and each tensor-parallel rank receives its slice in `to`
//   ring     for each pair in `ring_transfers`, the first tensor is sent to the next context part, and the
//            second is received from the previous one
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
  // Names of the tensors whose gradients the first pass of a step overwrites completely (Pass::is_first),
  // so that they need not be zeroed.
  virtual std::vector<std::string> overwritten_gradients() const { return {}; }
  // Called before and after a collective of this block. begin_exchange prepares and returns the operands;
  // end_exchange processes the result.
  virtual Exchange begin_exchange(const Instruction& collective, const Pass& pass);
  virtual void end_exchange(const Instruction& collective, const Pass& pass);
};

std::unique_ptr<Block> make_embedding_block(const BlockServices& services, const TensorPart& part);
std::unique_ptr<Block> make_layer_block(const BlockServices& services, int block,
                                        const LayerStrategy& strategy, const TensorPart& part);
std::unique_ptr<Block> make_head_block(const BlockServices& services, const TensorPart& part);

// Returns the dropout site named `site` of a layer (-1 for the embedding) for a pass. The site's rate is 0
// when not training. `first_row` is the index of the tensor's first row among the rows of the micro-batch.
DropoutSite dropout_site(const Pass& pass, double rate, int layer, std::string_view site,
                         std::int64_t first_row = 0);
// Returns a view of a [rows, width] tensor, extended to `rows` rows into the memory that follows it. Needed
// because all slices have equal length in a collective.
at::Tensor padded_to(const at::Tensor& tensor, std::int64_t rows);

}  // namespace optimus
