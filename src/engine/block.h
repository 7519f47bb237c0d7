// A block of the model as an engine runs it: forward, input gradient and weight gradient of its parts, written by hand. Blocks
// know no schedules and no communication; they read and write the tensors of a Pass. Under tensor parallelism a block works on
// its part of heads, columns and vocabulary, and the engine sums or gathers what it hands out in between (Exchange).
//
// Read next: layer_block.cpp (a transformer layer), engine.cpp (who calls).
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/batch.h"
#include "engine/fp8_scales.h"
#include "engine/parameters.h"
#include "engine/products.h"
#include "engine/tensor_part.h"
#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "kernels/ring_attention.h"
#include "schedule/program.h"
#include "schedule/slab.h"

namespace optimus {

// The tensors of one slab, as views into the arena.
class SlabTensors {
 public:
  SlabTensors() = default;
  SlabTensors(const Slab& slab, const at::Tensor& memory, ElementTypes types);
  const at::Tensor* find(std::string_view name) const;

 private:
  std::vector<std::pair<std::string, at::Tensor>> tensors_;
};

// One micro-batch on the device: the sequences that are its own.
struct DeviceMicrobatch {
  const Microbatch* host = nullptr;
  at::Tensor ids, targets, positions;  // [rows]
  std::int64_t num_rows() const { return ids.defined() ? ids.numel() : 0; }
};

// What does not change while an engine lives.
struct Tools {
  const ModelSpec& model;
  ElementTypes types;
  const Kernels& kernels;
  const Attention& attention;
  const RingAttention& ring;
  Products& products;
  at::Tensor cosine, sine;   // of RoPE, else undefined
  Fp8Scales* fp8 = nullptr;  // where layers multiply in 8 bits
};

class KeyValueCache;  // generation

// What one instruction works on. Tensors are found by the names of model/operations.h.
struct Pass {
  std::vector<const SlabTensors*> slabs;
  const BlockViews* weights = nullptr;
  const at::Tensor* next = nullptr;  // where the block's output goes: what the block above keeps as its input
  const at::Tensor* below = nullptr;  // where its input gradient goes
  const DeviceMicrobatch* microbatch = nullptr;
  std::int64_t sequence_length = 0, own_length = 0;  // of a sequence, and of its positions that are here
  std::int64_t step = 0;
  RandomKey dropout;                 // of the seed
  bool is_training = true;           // dropout happens
  bool is_recompute = false;         // forward: only what the backward needs
  int hop = -1;                      // round the context ring
  double gradient_scale = 1;         // of the loss; 0: no gradient is wanted
  bool is_first = false;             // of the step, for this block: what first_written() names holds old sums
  at::Tensor* loss = nullptr;        // one fp64 element on the device: the sum over tokens is added
  at::Tensor* all_logits = nullptr;  // not null: [rows, vocab], filled instead of a loss
  KeyValueCache* cache = nullptr;

  at::Tensor operator[](std::string_view name) const;
};

// What a collective around a part works on. sum: `from` is added up over the tensor parts, in place. gather: the parts' `from`
// one behind the other become `to`. scatter: `from` is added up and each part gets its slice, `to`. ring: each of passed_on goes
// to the next context part, into its partner there. nothing: it is not needed.
struct Exchange {
  enum class Kind { nothing, sum, gather, scatter, ring };
  Kind kind = Kind::nothing;
  at::Tensor from{}, to{};
  std::vector<std::pair<at::Tensor, at::Tensor>> passed_on{};
};

class Block {
 public:
  virtual ~Block() = default;
  virtual void forward(Part part, const Pass& pass) = 0;
  virtual void backward_input(Part part, const Pass& pass) = 0;
  virtual void backward_weight(Part part, const Pass& pass) = 0;
  // Tensors whose gradient a first pass writes over, whole: nobody needs to clear them.
  virtual std::vector<std::string> first_written() const { return {}; }
  // Before and behind a collective of this block: prepares what it sends, and goes on with what it brought.
  virtual Exchange begin_exchange(const Instruction& collective, const Pass& pass);
  virtual void end_exchange(const Instruction& collective, const Pass& pass);
};

std::unique_ptr<Block> make_embedding_block(const Tools& tools, const TensorPart& part);
std::unique_ptr<Block> make_layer_block(const Tools& tools, int block, const LayerStrategy& strategy,
                                        const TensorPart& part);
std::unique_ptr<Block> make_head_block(const Tools& tools, const TensorPart& part);

// The dropout site of a layer (-1: the embedding) for a pass; rate 0 when not training. first_row: of the micro-batch's rows, the
// first of the tensor.
DropoutSite dropout_site(const Pass& pass, double rate, int layer, std::string_view site,
                         std::int64_t first_row = 0);
// A [rows, width] tensor with the memory behind it, up to `rows`: slices of a group are equally long.
at::Tensor padded_to(const at::Tensor& tensor, std::int64_t rows);

}  // namespace optimus
