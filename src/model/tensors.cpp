// Implements tensors.h. The tensors of each kind of block are listed once, in the order of use. Everything
// else is derived from this list.
#include "model/tensors.h"

#include <fmt/format.h>

#include <cmath>

#include "base/error.h"
#include "model/hf_names.h"

namespace optimus {
namespace {

constexpr TensorSplit kNotSplit{};

// The location of a logical tensor inside a checkpoint tensor that fuses several logical tensors.
struct Fusion {
  std::int64_t offset = 0, total = 0;  // in rows; `total` is 0 if the tensor is not fused
};

// Collects the tensors of one block.
class BlockTensors {
 public:
  BlockTensors(const ModelSpec& spec, int block) : spec_(spec), names_(hf_names(spec.family)), block_(block) {
    if (block_kind(spec, block) != BlockKind::layer) return;
    logical_prefix_ = fmt::format("layers.{}.", block - 1);
    hf_prefix_ = fmt::format("{}{}.", names_.layers, block - 1);
  }

  void add_embedding() {
    add_table("embedding.words", names_.words, spec_.vocab, {SplitUnit::vocab, 0});
    tensors_.back().is_tied_to_head = spec_.is_tied;
    if (spec_.positions == PositionKind::learned)
      add_table("embedding.positions", names_.positions, spec_.max_positions, kNotSplit);
    if (spec_.token_types > 0)
      add_table("embedding.token_types", names_.token_types, spec_.token_types, kNotSplit);
    if (spec_.norm_position == NormPosition::post)
      add_norm("embedding.norm", names_.embedding_norm, spec_.hidden);
  }

  void add_layer() {
    const bool is_pre = spec_.norm_position == NormPosition::pre;
    if (is_pre) add_norm("norm1", names_.norm1, spec_.hidden);
    spec_.is_latent() ? add_latent_attention() : add_attention();
    add_norm(is_pre ? "norm2" : "norm1", is_pre ? names_.norm2 : names_.norm1, spec_.hidden);
    spec_.is_mixture_layer(block_ - 1) ? add_mixture() : add_mlp();
    if (!is_pre) add_norm("norm2", names_.norm2, spec_.hidden);
  }

  void add_head() {
    const std::int64_t hidden = spec_.hidden;
    if (spec_.norm_position == NormPosition::pre) add_norm("head.norm", names_.final_norm, hidden);
    if (spec_.is_bert()) {
      add_matrix("head.transform", names_.transform, {hidden, hidden}, kNotSplit, spec_.init_range);
      add_bias("head.transform", names_.transform, hidden, kNotSplit);
      add_norm("head.transform_norm", names_.transform_norm, hidden);
    }
    if (!spec_.is_tied) add_table("head.output", names_.output, spec_.vocab, {SplitUnit::vocab, 0});
    if (spec_.is_bert()) add_bias("head.output", names_.output, spec_.vocab, {SplitUnit::vocab, 0});
  }

  std::vector<LogicalTensor> take() { return std::move(tensors_); }

 private:
  void add_attention() {
    const std::int64_t q_width = spec_.query_width(), kv_width = spec_.kv_width();
    const bool is_fused = names_.has_conv1d;
    const std::int64_t total = is_fused ? q_width + 2 * kv_width : 0;
    const auto add_projection = [&](const char* logical_name, const char* hf_name, std::int64_t width,
                                    SplitUnit unit, std::int64_t offset) {
      const Fusion fusion{is_fused ? offset : 0, total};
      add_matrix(logical_name, hf_name, {width, spec_.hidden}, {unit, 0}, spec_.init_range, fusion);
      if (spec_.has_qkv_bias) add_bias(logical_name, hf_name, width, {unit, 0}, fusion);
    };
    add_projection("attention.q", names_.q, q_width, SplitUnit::heads, 0);
    add_projection("attention.k", names_.k, kv_width, SplitUnit::kv_heads, q_width);
    add_projection("attention.v", names_.v, kv_width, SplitUnit::kv_heads, q_width + kv_width);
    if (spec_.has_qk_norm) {
      add_norm("attention.q_norm", names_.q_norm, spec_.head_dim);
      tensors_.back().is_per_head = true;
      add_norm("attention.k_norm", names_.k_norm, spec_.head_dim);
      tensors_.back().is_per_head = true;
    }
    add_matrix("attention.out", names_.out, {spec_.hidden, q_width}, {SplitUnit::heads, 1},
               residual_deviation());
    if (spec_.has_out_bias) add_bias("attention.out", names_.out, spec_.hidden, kNotSplit);
  }

  void add_latent_attention() {
    const LatentAttention& l = spec_.latent;
    const std::int64_t hidden = spec_.hidden, nope_dim = spec_.head_dim - l.rope_dim;
    const auto add_projection = [&](const char* logical_name, const char* hf_name, Shape shape,
                                    TensorSplit split) {
      add_matrix(logical_name, hf_name, shape, split, spec_.init_range);
    };
    add_projection("attention.q_down", names_.q_down, {l.query_rank, hidden}, kNotSplit);
    add_norm("attention.q_norm", names_.q_down_norm, l.query_rank);
    add_projection("attention.q", names_.q_up, {spec_.query_width(), l.query_rank}, {SplitUnit::heads, 0});
    add_projection("attention.kv_down", names_.kv_down, {l.kv_rank + l.rope_dim, hidden}, kNotSplit);
    add_norm("attention.kv_norm", names_.kv_down_norm, l.kv_rank);
    add_projection("attention.kv", names_.kv_up, {spec_.heads * (nope_dim + l.value_dim), l.kv_rank},
                   {SplitUnit::key_value_heads, 0});
    add_projection("attention.out", names_.out, {hidden, spec_.heads * l.value_dim},
                   {SplitUnit::value_heads, 1});
  }

  void add_mlp() {
    const auto add_up_projection = [&](const char* logical_name, const char* hf_name) {
      add_matrix(logical_name, hf_name, {spec_.ffn, spec_.hidden}, {SplitUnit::ffn, 0}, spec_.init_range);
      if (spec_.has_mlp_bias) add_bias(logical_name, hf_name, spec_.ffn, {SplitUnit::ffn, 0});
    };
    if (spec_.is_gated) add_up_projection("mlp.gate", names_.gate);
    add_up_projection("mlp.up", names_.up);
    add_matrix("mlp.down", names_.down, {spec_.hidden, spec_.ffn}, {SplitUnit::ffn, 1}, residual_deviation());
    if (spec_.has_mlp_bias) add_bias("mlp.down", names_.down, spec_.hidden, kNotSplit);
  }

  // Experts are stacked along the rows. Checkpoints store gate and up of each expert in one matrix.
  void add_mixture() {
    const Mixture& m = spec_.mixture;
    const std::int64_t hidden = spec_.hidden;
    add_matrix("router", names_.router, {m.experts, hidden}, kNotSplit, spec_.init_range);
    const auto add_experts = [&](const char* logical_name, const char* hf_name, std::int64_t rows,
                                 std::int64_t columns, SplitUnit unit, Fusion fusion) {
      const std::int64_t stored_rows = fusion.total > 0 ? fusion.total : rows;
      add(logical_name, hf_name, "", {m.experts * rows, columns}, {unit, 0},
          {InitKind::normal, spec_.init_range},
          {false, fusion.offset, {m.experts, stored_rows, columns}, m.experts});
    };
    add_experts("experts.gate.weight", names_.expert_up, m.ffn, hidden, SplitUnit::expert_inner,
                {0, 2 * m.ffn});
    add_experts("experts.up.weight", names_.expert_up, m.ffn, hidden, SplitUnit::expert_inner,
                {m.ffn, 2 * m.ffn});
    add_experts("experts.down.weight", names_.expert_down, hidden, m.ffn, SplitUnit::expert_outer, {});
    if (m.shared_ffn == 0) return;
    add_matrix("shared.gate", names_.shared_gate, {m.shared_ffn, hidden}, kNotSplit, spec_.init_range);
    add_matrix("shared.up", names_.shared_up, {m.shared_ffn, hidden}, kNotSplit, spec_.init_range);
    add_matrix("shared.down", names_.shared_down, {hidden, m.shared_ffn}, kNotSplit, spec_.init_range);
  }

  // In GPT-2, projections into the residual stream are initialized with a smaller standard deviation in
  // deeper models. The other families do not depend on the depth.
  double residual_deviation() const {
    if (spec_.family != Family::gpt2) return spec_.init_range;
    return spec_.init_range / std::sqrt(2.0 * static_cast<double>(spec_.layers));
  }

  // Embedding tables are looked up by row or used as [out, in] matrices, so they are never stored transposed.
  void add_table(const char* logical_name, const char* hf_name, std::int64_t rows, TensorSplit split) {
    const Shape shape{rows, spec_.hidden};
    add(logical_name, hf_name, ".weight", shape, split, {InitKind::normal, spec_.init_range},
        {false, 0, shape});
  }

  void add_matrix(const char* logical_name, const char* hf_name, Shape shape, TensorSplit split,
                  double deviation, Fusion fusion = {}) {
    const bool is_transposed = names_.has_conv1d;
    const std::int64_t rows = fusion.total > 0 ? fusion.total : shape[0];
    const Shape tensor_location = is_transposed ? Shape{shape[1], rows} : Shape{rows, shape[1]};
    add(logical_name, hf_name, ".weight", shape, split, {InitKind::normal, deviation},
        {is_transposed, fusion.offset, tensor_location});
  }

  void add_bias(const char* logical_name, const char* hf_name, std::int64_t width, TensorSplit split,
                Fusion fusion = {}) {
    const Shape tensor_location{fusion.total > 0 ? fusion.total : width};
    add(logical_name, hf_name, ".bias", {width}, split, {InitKind::zeros, 0},
        {false, fusion.offset, tensor_location});
  }

  void add_norm(const char* logical_name, const char* hf_name, std::int64_t width) {
    add(logical_name, hf_name, ".weight", {width}, kNotSplit, {InitKind::ones, 0}, {false, 0, {width}});
    if (spec_.norm == NormKind::layer_norm) add_bias(logical_name, hf_name, width, kNotSplit);
  }

  struct StoredTensor {
    bool is_transposed;
    std::int64_t offset;
    Shape shape;
    std::int64_t pieces = 1;
  };

  void add(const char* logical_name, const char* hf_name, const char* suffix, Shape shape, TensorSplit split,
           Init init, StoredTensor tensor_location) {
    ensure(hf_name != nullptr, "{} has no name in Hugging Face checkpoints", logical_name);
    LogicalTensor tensor;
    tensor.name = logical_prefix_ + logical_name + suffix;
    tensor.shape = shape;
    tensor.block = block_;
    tensor.split = split;
    tensor.init = init;
    tensor.has_weight_decay = shape.num_dims > 1;
    tensor.hf = {hf_prefix_ + hf_name + suffix, tensor_location.is_transposed, tensor_location.offset,
                 tensor_location.shape, tensor_location.pieces};
    tensors_.push_back(std::move(tensor));
  }

  const ModelSpec& spec_;
  const HfNames& names_;
  int block_;
  std::string logical_prefix_, hf_prefix_;
  std::vector<LogicalTensor> tensors_;
};

std::vector<LogicalTensor> custom_tensors(const ModelSpec& spec, int block) {
  std::vector<LogicalTensor> tensors;
  for (const CustomTensor& custom : spec.custom[static_cast<std::size_t>(block)].tensors) {
    LogicalTensor& tensor = tensors.emplace_back();
    tensor.name = custom.name, tensor.shape = custom.shape, tensor.block = block;
    tensor.init = {InitKind::custom, 0};
    tensor.has_weight_decay = custom.has_weight_decay;
    tensor.hf = {custom.name, false, 0, custom.shape, 1};
  }
  return tensors;
}

std::int64_t count_elements(const std::vector<LogicalTensor>& tensors) {
  std::int64_t total = 0;
  for (const LogicalTensor& tensor : tensors) total += tensor.shape.num_elements();
  return total;
}

}  // namespace

int num_blocks(const ModelSpec& spec) {
  return spec.is_custom() ? static_cast<int>(spec.custom.size()) : static_cast<int>(spec.layers) + 2;
}

BlockKind block_kind(const ModelSpec& spec, int block) {
  ensure(block >= 0 && block < num_blocks(spec), "block {} is out of range for {} blocks", block,
         num_blocks(spec));
  if (spec.is_custom()) return BlockKind::custom;
  if (block == 0) return BlockKind::embedding;
  return block <= spec.layers ? BlockKind::layer : BlockKind::head;
}

// The patterns are embedding, dense layer, head and mixture layer.
constexpr int kMixturePattern = 3;

int num_patterns(const ModelSpec& spec) {
  return spec.is_custom() ? num_blocks(spec) : spec.is_mixture() ? kMixturePattern + 1 : kMixturePattern;
}

bool is_mixture_block(const ModelSpec& spec, int block) {
  return spec.is_mixture() && block_kind(spec, block) == BlockKind::layer && spec.is_mixture_layer(block - 1);
}

int pattern(const ModelSpec& spec, int block) {
  const BlockKind kind = block_kind(spec, block);
  if (is_mixture_block(spec, block)) return kMixturePattern;
  return kind == BlockKind::custom ? block : static_cast<int>(kind);
}

int first_of_pattern(const ModelSpec& spec, int pattern_id) {
  for (int block = 0; block < num_blocks(spec); ++block)
    if (pattern(spec, block) == pattern_id) return block;
  return -1;
}

std::int64_t num_blocks_of_pattern(const ModelSpec& spec, int pattern_id) {
  if (!spec.is_mixture())
    return pattern_id == static_cast<int>(BlockKind::layer) && !spec.is_custom() ? spec.layers : 1;
  std::int64_t count = 0;
  for (int block = 0; block < num_blocks(spec); ++block) count += pattern(spec, block) == pattern_id;
  return count;
}

std::int64_t output_width(const ModelSpec& spec, int block) {
  return spec.is_custom() ? spec.custom.at(static_cast<std::size_t>(block)).outputs : spec.hidden;
}

std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec, int block) {
  const BlockKind kind = block_kind(spec, block);
  if (kind == BlockKind::custom) return custom_tensors(spec, block);
  BlockTensors list(spec, block);
  switch (kind) {
    case BlockKind::embedding:
      list.add_embedding();
      break;
    case BlockKind::layer:
      list.add_layer();
      break;
    case BlockKind::head:
      list.add_head();
      break;
    case BlockKind::custom:
      break;
  }
  return list.take();
}

std::vector<LogicalTensor> logical_tensors(const ModelSpec& spec) {
  std::vector<LogicalTensor> tensors;
  for (int block = 0; block < num_blocks(spec); ++block) {
    std::vector<LogicalTensor> block_tensors = logical_tensors(spec, block);
    std::move(block_tensors.begin(), block_tensors.end(), std::back_inserter(tensors));
  }
  return tensors;
}

std::int64_t num_parameters(const ModelSpec& spec) {
  if (spec.is_custom()) return count_elements(logical_tensors(spec));
  std::int64_t total = 0;
  for (int p = 0; p < num_patterns(spec); ++p)
    if (const int block = first_of_pattern(spec, p); block >= 0)
      total += num_blocks_of_pattern(spec, p) * count_elements(logical_tensors(spec, block));
  return total;
}

std::int64_t num_active_parameters(const ModelSpec& spec) {
  std::int64_t total = num_parameters(spec);
  if (!spec.is_mixture()) return total;
  const std::int64_t num_unused_experts = spec.mixture.experts - spec.mixture.experts_per_token;
  return total - num_blocks_of_pattern(spec, kMixturePattern) * num_unused_experts * 3 * spec.hidden *
                     spec.mixture.ffn;
}

std::int64_t num_units(const ModelSpec& spec, SplitUnit unit) {
  switch (unit) {
    case SplitUnit::none:
      return 1;
    case SplitUnit::heads:
    case SplitUnit::key_value_heads:
    case SplitUnit::value_heads:
      return spec.heads;
    case SplitUnit::kv_heads:
      return spec.kv_heads;
    case SplitUnit::ffn:
      return spec.ffn;
    case SplitUnit::vocab:
      return spec.vocab;
    case SplitUnit::expert_inner:
    case SplitUnit::expert_outer:
      return spec.mixture.experts;
  }
  return 1;
}

std::int64_t unit_width(const ModelSpec& spec, SplitUnit unit) {
  switch (unit) {
    case SplitUnit::none:
    case SplitUnit::ffn:
    case SplitUnit::vocab:
      return 1;
    case SplitUnit::heads:
    case SplitUnit::kv_heads:
      return spec.head_dim;
    case SplitUnit::expert_inner:
      return spec.mixture.ffn;
    case SplitUnit::expert_outer:
      return spec.hidden;
    case SplitUnit::key_value_heads:
      return spec.head_dim - spec.latent.rope_dim + spec.latent.value_dim;
    case SplitUnit::value_heads:
      return spec.latent.value_dim;
  }
  return 1;
}

}  // namespace optimus
