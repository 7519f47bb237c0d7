// Implements operations.h. Each kind of block is listed once, operation by operation.
#include "model/operations.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {
namespace {

constexpr RecomputeMode kAlwaysSaved = RecomputeMode::full;  // saved in every mode
// Saved unless the whole block is recomputed.
constexpr RecomputeMode kSavedBySelective = RecomputeMode::selective;
constexpr RecomputeMode kRecomputedFirst = RecomputeMode::none;  // recomputed in the selective and full modes

double as_double(std::int64_t number) { return static_cast<double>(number); }

// Collects the operations of one block.
class BlockOperations {
 public:
  BlockOperations(const ModelSpec& spec, std::int64_t length)
      : spec_(spec),
        length_(as_double(length)),
        hidden_(as_double(spec.hidden)),
        query_(as_double(spec.query_width())),
        kv_(as_double(spec.kv_width())),
        value_(as_double(spec.kv_heads * spec.value_dim())),
        output_(as_double(spec.heads * spec.value_dim())),
        ffn_(as_double(spec.ffn)) {}

  void add_embedding() {
    const bool is_learned = spec_.positions == PositionKind::learned;
    const double num_tables = 1 + (is_learned ? 1 : 0) + (spec_.token_types > 0 ? 1 : 0);
    Operation& lookup = add_operation("embedding.lookup", OperationKind::embedding, SplitUnit::vocab);
    lookup.accessed_elements = (num_tables + 1) * hidden_;
    lookup.saved = {{"embedding.ids", 1, SavedType::index, SplitUnit::none, kAlwaysSaved}};
    if (spec_.token_types > 0)
      lookup.saved.push_back({"embedding.token_types", 1, SavedType::index, SplitUnit::none, kAlwaysSaved});
    // The embedding is never recomputed as a whole.
    if (spec_.norm_position == NormPosition::post)
      add_norm("embedding.norm", kAlwaysSaved, false, kAlwaysSaved);
  }

  void add_layer(bool is_mixture) {
    if (spec_.norm_position == NormPosition::pre) {
      add_norm("norm1", kAlwaysSaved);
      add_attention({"norm1.output", hidden_, SavedType::activation, SplitUnit::none, kRecomputedFirst});
      add_residual("residual1");
      add_norm("norm2", kSavedBySelective);
      is_mixture ? add_mixture("norm2.output") : add_mlp("norm2.output");
      add_residual("residual2");
    } else {
      add_attention({"attention.input", hidden_, SavedType::activation, SplitUnit::none, kAlwaysSaved});
      add_residual("residual1");
      add_norm("norm1", kSavedBySelective);
      add_mlp("norm1.output");
      add_residual("residual2");
      // The output of this norm is the input of the next block and is saved there, so the norm is not
      // recomputed and its statistics are always saved.
      add_norm("norm2", kSavedBySelective, false, kAlwaysSaved);
    }
  }

  // The loss and its gradient are computed together in the forward pass, so the tensors of the head are saved
  // in every mode.
  void add_head() {
    const bool is_pre = spec_.norm_position == NormPosition::pre;
    if (is_pre) add_norm("head.norm", kAlwaysSaved, false, kAlwaysSaved);
    if (spec_.is_bert()) {
      add_gemm("head.transform", spec_.hidden, spec_.hidden, SplitUnit::none)
          .saved.push_back({is_pre ? "head.norm.output" : "head.input", hidden_, SavedType::activation,
                            SplitUnit::none, kAlwaysSaved});
      Operation& activation =
          add_operation("head.transform_activation", OperationKind::activation, SplitUnit::none);
      activation.accessed_elements = 2 * hidden_;
      activation.saved = {
          {"head.transform.output", hidden_, SavedType::activation, SplitUnit::none, kAlwaysSaved}};
      add_norm("head.transform_norm", kAlwaysSaved, false, kAlwaysSaved);
    }
    Operation& output = add_gemm("head.output", spec_.hidden, spec_.vocab, SplitUnit::vocab);
    output.saved = {{"head.output.input", hidden_, SavedType::activation, SplitUnit::none, kAlwaysSaved}};
    Operation& loss = add_operation("head.loss", OperationKind::loss, SplitUnit::vocab);
    loss.accessed_elements = 2 * as_double(spec_.vocab);
    loss.saved = {{"head.loss.targets", 1, SavedType::index, SplitUnit::none, kAlwaysSaved},
                  {"head.loss.tokens", 1, SavedType::fp32, SplitUnit::none, kAlwaysSaved}};
  }

  std::vector<Operation> take() { return std::move(operations_); }

 private:
  void add_latent_attention(SavedTensor input) {
    const LatentAttention& l = spec_.latent;
    const double rope_width = as_double(l.rope_dim), heads = as_double(spec_.heads);
    add_gemm("attention.q_down", spec_.hidden, l.query_rank, SplitUnit::none).saved = {std::move(input)};
    add_gemm("attention.kv_down", spec_.hidden, l.kv_rank + l.rope_dim, SplitUnit::none);
    add_latent_norm("attention.q_norm", as_double(l.query_rank));
    add_latent_norm("attention.kv_norm", as_double(l.kv_rank));
    add_gemm("attention.q", l.query_rank, spec_.query_width(), SplitUnit::heads).saved = {
        {"attention.q_norm.output", as_double(l.query_rank), SavedType::activation, SplitUnit::none,
         kRecomputedFirst}};
    add_gemm("attention.kv", l.kv_rank, spec_.heads * (spec_.head_dim - l.rope_dim + l.value_dim),
             SplitUnit::heads)
        .saved = {{"attention.kv_norm.output", as_double(l.kv_rank), SavedType::activation, SplitUnit::none,
                   kRecomputedFirst}};
    add_rope("attention.rope_q", heads * rope_width, SplitUnit::heads);
    add_rope("attention.rope_k", heads * rope_width,
             SplitUnit::heads);  // the shared rotary key is copied to every head
    add_flash_attention();
    add_gemm("attention.out", spec_.heads * l.value_dim, spec_.hidden, SplitUnit::heads);
  }

  void add_latent_norm(const std::string& name, double width) {
    Operation& op = add_operation(name, OperationKind::norm, SplitUnit::none);
    op.accessed_elements = 2 * width;
    op.saved = {{name + ".input", width, SavedType::activation, SplitUnit::none, kSavedBySelective},
                {name + ".statistics", 1, SavedType::fp32, SplitUnit::none, kSavedBySelective}};
    op.is_recomputed_by_selective = true;
  }

  void add_attention(SavedTensor input) {
    if (spec_.is_latent()) return add_latent_attention(std::move(input));
    add_gemm("attention.q", spec_.hidden, spec_.query_width(), SplitUnit::heads).saved = {std::move(input)};
    add_gemm("attention.k", spec_.hidden, spec_.kv_width(), SplitUnit::kv_heads);
    add_gemm("attention.v", spec_.hidden, spec_.kv_width(), SplitUnit::kv_heads);
    if (spec_.has_qk_norm) {
      add_head_norm("attention.q_norm", query_, as_double(spec_.heads), SplitUnit::heads);
      add_head_norm("attention.k_norm", kv_, as_double(spec_.kv_heads), SplitUnit::kv_heads);
    }
    if (spec_.positions == PositionKind::rope) {
      add_rope("attention.rope_q", query_, SplitUnit::heads);
      add_rope("attention.rope_k", kv_, SplitUnit::kv_heads);
    }
    add_flash_attention();
    // The input is attention.output, which is saved already.
    add_gemm("attention.out", spec_.query_width(), spec_.hidden, SplitUnit::heads);
  }

  void add_flash_attention() {
    const double positions = spec_.is_causal ? (length_ + 1) / 2 : length_;
    Operation& attention = add_operation("attention.core", OperationKind::attention, SplitUnit::heads);
    attention.forward_flops = 2 * (query_ + output_) * positions;  // scores and weighted sum of values
    attention.backward_flops = 2 * attention.forward_flops;
    attention.attention_recompute_flops = 2 * query_ * positions;  // the scores are recomputed
    attention.accessed_elements = query_ + output_ + kv_ + value_;
    // If q and k are normalized, the inputs of the norms are already saved, and recomputing the outputs is
    // inexpensive.
    const RecomputeMode qk_mode = spec_.has_qk_norm ? kRecomputedFirst : kSavedBySelective;
    const std::string qk_matrix = spec_.has_qk_norm ? "" : "qkv";
    attention.saved = {
        {"attention.query", query_, SavedType::activation, SplitUnit::heads, qk_mode, qk_matrix},
        {"attention.key", kv_, SavedType::activation, SplitUnit::kv_heads, qk_mode, qk_matrix},
        {"attention.value", value_, SavedType::activation, SplitUnit::kv_heads, kSavedBySelective, "qkv"},
        {"attention.output", output_, SavedType::activation, SplitUnit::heads, kSavedBySelective},
        {"attention.logsumexp", as_double(spec_.heads), SavedType::fp32, SplitUnit::heads, kSavedBySelective},
    };
  }

  void add_mlp(std::string input) {
    const SavedTensor saved_input{std::move(input), hidden_, SavedType::activation, SplitUnit::none,
                                  kRecomputedFirst};
    if (spec_.is_gated) add_gemm("mlp.gate", spec_.hidden, spec_.ffn, SplitUnit::ffn).saved = {saved_input};
    Operation& up = add_gemm("mlp.up", spec_.hidden, spec_.ffn, SplitUnit::ffn);
    if (!spec_.is_gated) up.saved = {saved_input};
    Operation& activation = add_operation("mlp.activation", OperationKind::activation, SplitUnit::ffn);
    activation.accessed_elements = (spec_.is_gated ? 3 : 2) * ffn_;
    if (spec_.is_gated)
      activation.saved.push_back(
          {"mlp.gate.output", ffn_, SavedType::activation, SplitUnit::ffn, kSavedBySelective, "up"});
    activation.saved.push_back(
        {"mlp.up.output", ffn_, SavedType::activation, SplitUnit::ffn, kSavedBySelective, "up"});
    activation.is_recomputed_by_selective = true;
    add_gemm("mlp.down", spec_.ffn, spec_.hidden, SplitUnit::ffn).saved = {
        {"mlp.activation.output", ffn_, SavedType::activation, SplitUnit::ffn, kRecomputedFirst}};
  }

  // Router weights are applied at the activation function, so that expert outputs need not be saved.
  void add_mixture(std::string input) {
    const Mixture& m = spec_.mixture;
    const double k = as_double(m.experts_per_token), expert_width = k * as_double(m.ffn);
    add_gemm("router", spec_.hidden, m.experts, SplitUnit::none).saved = {
        {std::move(input), hidden_, SavedType::activation, SplitUnit::none, kRecomputedFirst}};
    Operation& routing = add_operation("routing", OperationKind::routing, SplitUnit::none);
    // Counts the scores in fp32, a copy of each token for each of its experts, and the gathered and summed
    // outputs.
    routing.accessed_elements = 4 * as_double(m.experts) + 2 * (k + 1) * hidden_;
    routing.saved = {
        {"routing.scores", as_double(m.experts), SavedType::fp32, SplitUnit::none, kSavedBySelective},
        {"routing.places", k, SavedType::index, SplitUnit::none, kSavedBySelective}};
    if (m.shared_ffn > 0) add_shared_expert();
    add_expert_gemm("experts.gate", spec_.hidden, m.ffn).saved = {
        {"experts.input", k * hidden_, SavedType::activation, SplitUnit::none, kSavedBySelective}};
    add_expert_gemm("experts.up", spec_.hidden, m.ffn);
    Operation& activation = add_operation("experts.activation", OperationKind::activation, SplitUnit::none);
    activation.accessed_elements = 3 * expert_width;
    activation.saved = {{"experts.gate.output", expert_width, SavedType::activation, SplitUnit::none,
                         kSavedBySelective, "experts.up"},
                        {"experts.up.output", expert_width, SavedType::activation, SplitUnit::none,
                         kSavedBySelective, "experts.up"}};
    activation.is_recomputed_by_selective = true;
    add_expert_gemm("experts.down", m.ffn, spec_.hidden).saved = {{"experts.activation.output", expert_width,
                                                                   SavedType::activation, SplitUnit::none,
                                                                   kRecomputedFirst}};
  }

  void add_shared_expert() {
    const std::int64_t ffn = spec_.mixture.shared_ffn;
    const double expert_width = as_double(ffn);
    add_gemm("shared.gate", spec_.hidden, ffn, SplitUnit::none);
    add_gemm("shared.up", spec_.hidden, ffn, SplitUnit::none);
    Operation& activation = add_operation("shared.activation", OperationKind::activation, SplitUnit::none);
    activation.accessed_elements = 3 * expert_width;
    activation.saved = {{"shared.gate.output", expert_width, SavedType::activation, SplitUnit::none,
                         kSavedBySelective, "shared.up"},
                        {"shared.up.output", expert_width, SavedType::activation, SplitUnit::none,
                         kSavedBySelective, "shared.up"}};
    activation.is_recomputed_by_selective = true;
    add_gemm("shared.down", ffn, spec_.hidden, SplitUnit::none).saved = {
        {"shared.activation.output", expert_width, SavedType::activation, SplitUnit::none, kRecomputedFirst}};
  }

  Operation& add_expert_gemm(const std::string& name, std::int64_t inner, std::int64_t outer) {
    Operation& op = add_gemm(name, inner, outer, SplitUnit::none);
    op.experts = spec_.mixture.experts, op.passes = spec_.mixture.experts_per_token;
    const double uses_per_token = as_double(op.passes);
    op.forward_flops *= uses_per_token, op.backward_flops *= uses_per_token,
        op.accessed_elements *= uses_per_token;
    return op;
  }

  double statistics_per_row() const { return spec_.norm == NormKind::layer_norm ? 2 : 1; }

  void add_norm(const std::string& name, RecomputeMode input_saved_up_to, bool is_recomputed = true,
                RecomputeMode statistics_saved_up_to = kSavedBySelective) {
    Operation& op = add_operation(name, OperationKind::norm, SplitUnit::none);
    op.accessed_elements = 2 * hidden_;
    op.saved = {{name + ".input", hidden_, SavedType::activation, SplitUnit::none, input_saved_up_to},
                {name + ".statistics", statistics_per_row(), SavedType::fp32, SplitUnit::none,
                 statistics_saved_up_to}};
    op.is_recomputed_by_selective = is_recomputed;
  }

  void add_head_norm(const std::string& name, double width, double num_heads, SplitUnit split) {
    Operation& op = add_operation(name, OperationKind::norm, split);
    op.accessed_elements = 2 * width;
    op.saved = {
        {name + ".input", width, SavedType::activation, split, kSavedBySelective, "qkv"},
        {name + ".statistics", num_heads * statistics_per_row(), SavedType::fp32, split, kSavedBySelective}};
    op.is_recomputed_by_selective = true;
  }

  void add_rope(const std::string& name, double width, SplitUnit split) {
    Operation& op = add_operation(name, OperationKind::rope, split);
    op.accessed_elements = 2 * width;
    op.is_recomputed_by_selective = spec_.has_qk_norm;
  }

  void add_residual(const std::string& name) {
    add_operation(name, OperationKind::residual, SplitUnit::none).accessed_elements = 3 * hidden_;
  }

  Operation& add_gemm(const std::string& name, std::int64_t inner, std::int64_t outer, SplitUnit split) {
    Operation& op = add_operation(name, OperationKind::gemm, split);
    op.inner = inner, op.outer = outer;
    op.forward_flops = 2 * as_double(inner) * as_double(outer);
    op.backward_flops = 2 * op.forward_flops;
    op.accessed_elements = as_double(inner) + as_double(outer);
    return op;
  }

  Operation& add_operation(const std::string& name, OperationKind kind, SplitUnit split) {
    Operation op;
    op.name = name, op.kind = kind, op.split = split;
    operations_.push_back(std::move(op));
    return operations_.back();
  }

  const ModelSpec& spec_;
  double length_, hidden_, query_, kv_, value_, output_, ffn_;
  std::vector<Operation> operations_;
};

}  // namespace

namespace {

std::vector<Operation> transformer_operations(const ModelSpec& spec, BlockKind block, bool is_mixture,
                                              std::int64_t sequence_length) {
  ensure(sequence_length >= 1, "sequence length: expected at least 1, got {}", sequence_length);
  BlockOperations operations(spec, sequence_length);
  switch (block) {
    case BlockKind::embedding:
      operations.add_embedding();
      break;
    case BlockKind::layer:
      operations.add_layer(is_mixture);
      break;
    case BlockKind::head:
      operations.add_head();
      break;
    case BlockKind::custom:
      ensure(false, "operations of a custom block require the block index, not only its kind");
  }
  return operations.take();
}

std::vector<Operation> custom_operations(const CustomBlock& block) {
  Operation operation;
  operation.name = block.name, operation.kind = OperationKind::custom;
  operation.forward_flops = block.forward_flops, operation.backward_flops = 2 * block.forward_flops;
  operation.accessed_elements = as_double(block.inputs + block.outputs);
  const SavedType type = block.has_index_inputs ? SavedType::index : SavedType::activation;
  operation.saved = {{"input", as_double(block.inputs), type, SplitUnit::none, kAlwaysSaved}};
  return {operation};
}

}  // namespace

std::vector<Operation> operations(const ModelSpec& spec, int block, std::int64_t sequence_length) {
  if (spec.is_custom()) return custom_operations(spec.custom.at(static_cast<std::size_t>(block)));
  return transformer_operations(spec, block_kind(spec, block), is_mixture_block(spec, block),
                                sequence_length);
}

std::vector<Operation> operations(const ModelSpec& spec, BlockKind block, std::int64_t sequence_length) {
  return transformer_operations(spec, block, false, sequence_length);
}

int bytes_per_element(SavedType type, int activation_bytes) {
  switch (type) {
    case SavedType::activation:
      return activation_bytes;
    case SavedType::fp32:
      return std::max(4, activation_bytes);
    case SavedType::byte:
      return 1;
    case SavedType::index:
      return 8;
  }
  return 0;
}

// The gradients of a layer in the order in which its backward pass computes them. With post-norm or dropout,
// the gradient of a GEMM output differs from the gradient of the residual stream.
std::vector<GradientTensor> layer_gradients(const ModelSpec& spec, bool is_mixture) {
  const double hidden = as_double(spec.hidden), query = as_double(spec.query_width()),
               kv = as_double(spec.kv_width()), value = as_double(spec.kv_heads * spec.value_dim()),
               output = as_double(spec.heads * spec.value_dim()), ffn = as_double(spec.ffn);
  const bool is_post = spec.norm_position == NormPosition::post, has_dropout = spec.hidden_dropout > 0;
  std::vector<GradientTensor> result = {{"output.gradient", hidden, SplitUnit::none, true}};
  const auto add = [&](const char* name, double width, SplitUnit split, bool is_for_weights,
                       const char* matrix = "") {
    result.push_back({name, width, split, is_for_weights, matrix});
  };
  if (is_post) add("mlp.sum.gradient", hidden, SplitUnit::none, true);
  if (has_dropout) add("mlp.down.gradient", hidden, SplitUnit::none, true);
  if (is_mixture) {
    const double k = as_double(spec.mixture.experts_per_token),
                 expert_width = k * as_double(spec.mixture.ffn), shared = as_double(spec.mixture.shared_ffn);
    add("experts.output.gradient", k * hidden, SplitUnit::none, true);
    add("experts.up.gradient", 2 * expert_width, SplitUnit::none, true);
    if (shared > 0) add("shared.up.gradient", 2 * shared, SplitUnit::none, true);
    add("experts.input.gradient", k * hidden, SplitUnit::none, false);
    add("experts.activation.gradient", std::max(expert_width, shared), SplitUnit::none, false);
  } else {
    if (spec.is_gated) add("mlp.gate.gradient", ffn, SplitUnit::ffn, true, "up.gradient");
    add("mlp.up.gradient", ffn, SplitUnit::ffn, true, "up.gradient");
  }
  add("middle.gradient", hidden, SplitUnit::none, true);
  if (has_dropout) add("attention.out.gradient", hidden, SplitUnit::none, true);
  add("attention.query.gradient", query, SplitUnit::heads, true, "qkv.gradient");
  add("attention.key.gradient", kv, SplitUnit::kv_heads, true, "qkv.gradient");
  add("attention.value.gradient", value, SplitUnit::kv_heads, true, "qkv.gradient");
  if (spec.is_latent())
    add("attention.narrow.gradient",
        as_double(spec.latent.query_rank + spec.latent.kv_rank + spec.latent.rope_dim), SplitUnit::none,
        true);
  add("input.gradient", hidden, SplitUnit::none, false);
  add("attention.output.gradient", output, SplitUnit::heads, false);
  if (spec.is_gated && !is_mixture) add("mlp.activation.gradient", ffn, SplitUnit::ffn, false);
  return result;
}

std::vector<GradientTensor> gradients(const ModelSpec& spec, BlockKind block) {
  const double hidden = as_double(spec.hidden);
  switch (block) {
    case BlockKind::embedding:
      return {{"output.gradient", hidden, SplitUnit::none, true}};
    case BlockKind::layer:
      return layer_gradients(spec, false);
    case BlockKind::head:
      if (!spec.is_bert()) return {};
      return {{"head.transform.gradient", hidden, SplitUnit::none, true},
              {"input.gradient", hidden, SplitUnit::none, false}};
    case BlockKind::custom:
      ensure(false, "gradients of a custom block require the block index, not only its kind");
  }
  return {};
}

std::vector<GradientTensor> gradients(const ModelSpec& spec, int block) {
  if (is_mixture_block(spec, block)) return layer_gradients(spec, true);
  if (!spec.is_custom()) return gradients(spec, block_kind(spec, block));
  const std::int64_t outputs = output_width(spec, block);
  if (outputs == 0) return {};  // the last block, which computes the loss
  return {{"output.gradient", as_double(outputs), SplitUnit::none, true}};
}

std::string input_name(const ModelSpec& spec, BlockKind block) {
  const bool is_pre = spec.norm_position == NormPosition::pre;
  switch (block) {
    case BlockKind::embedding:
      return "";
    case BlockKind::layer:
      return is_pre ? "norm1.input" : "attention.input";
    case BlockKind::head:
      return is_pre ? "head.norm.input" : "head.input";
    case BlockKind::custom:
      return "input";
  }
  return "";
}

std::string input_name(const ModelSpec& spec, int block) { return input_name(spec, block_kind(spec, block)); }

std::int64_t logit_rows(std::int64_t tokens) {
  return std::min(tokens, std::max<std::int64_t>(256, (tokens + 7) / 8));
}

namespace {

double saved_bytes(const std::vector<Operation>& operations, RecomputeMode mode, int activation_bytes) {
  double total = 0;
  for (const Operation& operation : operations)
    for (const SavedTensor& saved : operation.saved)
      if (saved.strongest_saving_mode >= mode)
        total += saved.elements_per_token * bytes_per_element(saved.type, activation_bytes);
  return total;
}

}  // namespace

double saved_bytes_per_token(const ModelSpec& spec, BlockKind block, std::int64_t sequence_length,
                             RecomputeMode mode, int activation_bytes) {
  return saved_bytes(operations(spec, block, sequence_length), mode, activation_bytes);
}

double saved_bytes_per_token(const ModelSpec& spec, int block, std::int64_t sequence_length,
                             RecomputeMode mode, int activation_bytes) {
  return saved_bytes(operations(spec, block, sequence_length), mode, activation_bytes);
}

double model_flops_per_token(const ModelSpec& spec, std::int64_t sequence_length) {
  if (spec.is_custom()) {
    double flops = 0;
    for (const CustomBlock& block : spec.custom) flops += 3 * block.forward_flops;
    return flops;
  }
  double parameters = 0;
  for (int p = 0; p < num_patterns(spec); ++p)
    if (const int block = first_of_pattern(spec, p); block >= 0)
      for (const Operation& operation : operations(spec, block, sequence_length))
        parameters += as_double(num_blocks_of_pattern(spec, p)) * as_double(operation.inner) *
                      as_double(operation.outer) * as_double(operation.passes);
  const double layers = as_double(spec.layers);
  const double scores_and_values = as_double(spec.query_width() + spec.heads * spec.value_dim());
  return 6 * parameters + 6 * layers * scores_and_values * as_double(sequence_length);
}

}  // namespace optimus
