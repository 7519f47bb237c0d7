// LayerTensors: the tensors that a pass through a transformer layer reads and writes, by role. Which tensor
// has which role depends on the position of the norms, on gates and dropout, and on sequence parallelism. The
// computations are in layer_block.cpp.
#pragma once

#include <cmath>
#include <string>
#include <string_view>

#include "engine/block.h"
#include "plan/fp8.h"

namespace optimus {

class LayerTensors {
 public:
  // The weight and bias of a GEMM or a norm, and their gradient accumulators.
  struct Weights {
    at::Tensor weight, bias, weight_gradient, bias_gradient;
  };

  LayerTensors(const ModelSpec& model, int layer, const LayerStrategy& strategy, const TensorPart& part)
      : model_(model), layer_(layer), strategy_(strategy), part_(part) {}

  bool is_pre() const { return model_.norm_position == NormPosition::pre; }
  bool uses_sequence_parallel() const { return part_.is_sequence_parallel; }
  const char* up_name() const { return model_.is_gated ? "mlp.gate_up" : "mlp.up"; }
  const char* name_of(LayerGemm layer_gemm) const {
    switch (layer_gemm) {
      case LayerGemm::qkv:
        return "attention.qkv";
      case LayerGemm::out:
        return "attention.out";
      case LayerGemm::up:
        return up_name();
      case LayerGemm::down:
        return "mlp.down";
    }
    return "";
  }
  at::Tensor stream_in(const Pass& pass) const { return pass[input_name(model_, BlockKind::layer)]; }
  // The inputs of the first GEMM of each part, which is qkv for attention and up for the mlp. With sequence
  // parallelism, they contain only this device's slice of the tokens, which is not gathered yet.
  at::Tensor attention_input(const Pass& pass) const {
    return pass[is_pre() ? "norm1.output" : "attention.input"];
  }
  at::Tensor mlp_input(const Pass& pass) const { return pass[is_pre() ? "norm2.output" : "norm1.output"]; }
  at::Tensor attention_operand(const Pass& pass) const {
    return uses_sequence_parallel() ? pass["attention.whole"] : attention_input(pass);
  }
  at::Tensor mlp_operand(const Pass& pass) const {
    return uses_sequence_parallel() ? pass["mlp.whole"] : mlp_input(pass);
  }
  at::Tensor gate(const Pass& pass) const { return model_.is_gated ? pass["mlp.gate.output"] : at::Tensor(); }
  // The residual sum at the end of each part. With norms before the parts, the residual sum of the mlp is the
  // block's output.
  at::Tensor attention_sum(const Pass& pass) const { return pass[is_pre() ? "norm2.input" : "norm1.input"]; }
  at::Tensor mlp_sum(const Pass& pass) const { return is_pre() ? output(pass) : pass["norm2.input"]; }
  at::Tensor mlp_stream(const Pass& pass) const { return pass[is_pre() ? "norm2.input" : "norm1.output"]; }
  // Returns whether the pass must compute the block's output. A recompute pass needs the output only as the
  // input of the next layer and, with norms after the sums, for norm statistics, which layers of a recompute
  // group do not save.
  bool has_output(const Pass& pass) const {
    return !pass.is_recompute || pass.next_input != nullptr || (!is_pre() && strategy_.recompute_layers > 1);
  }
  // Returns whether the pass must compute the residual sum of the mlp, which the gradient of a norm after the
  // sum needs.
  bool has_mlp_sum(const Pass& pass) const { return has_output(pass) || !is_pre(); }

  // Returns whether the backward pass of the second norm also computes the bias gradients of mlp.down and
  // attention.out. It reads or writes the output gradients of both GEMMs anyway.
  bool has_sums_in_norm() const {
    return is_pre() && model_.hidden_dropout == 0 && model_.has_out_bias && model_.has_mlp_bias;
  }
  // Output gradients of the two GEMMs that add to the residual stream. They are the stream's gradient, with
  // the dropout mask applied if there is dropout.
  at::Tensor mlp_down_gradient(const Pass& pass) const {
    if (model_.hidden_dropout > 0) return pass["mlp.down.gradient"];
    return pass[is_pre() ? "output.gradient" : "mlp.sum.gradient"];
  }
  at::Tensor attention_out_gradient(const Pass& pass) const {
    return pass[model_.hidden_dropout > 0 ? "attention.out.gradient" : "middle.gradient"];
  }
  // Returns the output gradient of the part's last GEMM for all tokens. With sequence parallelism, this is
  // the gathered gradient.
  at::Tensor whole_gradient(const Pass& pass, Part part) const {
    if (part == Part::attention)
      return uses_sequence_parallel() ? pass["attention.whole.gradient"] : attention_out_gradient(pass);
    return uses_sequence_parallel() ? pass["mlp.whole.gradient"] : mlp_down_gradient(pass);
  }
  Weights weights(const Pass& pass, const std::string& name) const {
    const WeightView &weight = (*pass.weights)[name + ".weight"], &bias = (*pass.weights)[name + ".bias"];
    return {weight.weight, bias.weight, weight.gradient, bias.gradient};
  }
  DropoutSite dropout_of(const Pass& pass, std::string_view site) const {
    return dropout_site(pass, model_.hidden_dropout, layer_, site,
                        part_.slice(pass.microbatch->num_rows()).begin);
  }
  at::Tensor output(const Pass& pass) const {
    return pass.next_input ? *pass.next_input : pass["norm2.output"];
  }
  at::Tensor input_gradient(const Pass& pass) const { return *pass.input_gradient; }
  NormOptions norm_options() const { return {model_.norm, model_.norm_eps}; }
  // [rows, width] -> [rows, heads, head_dim]
  at::Tensor heads(const at::Tensor& x) const { return x.unflatten(1, {-1, model_.head_dim}); }
  static at::Tensor select_query_heads(const at::Tensor& x, const HeadRange& run) {
    return x.size(1) == run.count ? x : x.narrow(1, run.first_head, run.count);
  }
  static at::Tensor select_kv_heads(const at::Tensor& x, const HeadRange& run) {
    return x.size(1) == run.num_kv ? x : x.narrow(1, run.first_kv, run.num_kv);
  }
  // Returns the log-sum-exp of the scores of one head range, [sequences, heads, length]. The tensors of all
  // head ranges are stored one after another.
  at::Tensor logsumexp(const Pass& pass, const HeadRange& run) const {
    const at::Tensor flat = pass["attention.logsumexp"].view({-1});
    const std::int64_t rows = flat.numel() / part_.heads.size();
    return flat.narrow(0, run.first_head * rows, run.count * rows)
        .view({-1, run.count, pass.sequence_length});
  }
  AttentionTask task(const Pass& pass, const HeadRange& run) const {
    AttentionTask task;
    task.shape = {.sequences = std::ssize(pass.microbatch->host->samples),
                  .length = pass.sequence_length,
                  .heads = run.count,
                  .kv_heads = run.num_kv,
                  .head_dim = model_.head_dim,
                  .is_causal = model_.is_causal,
                  .scale = 1 / std::sqrt(static_cast<double>(model_.head_dim))};
    task.segments = pass.microbatch->host->segments;
    const DropoutSite site = dropout_site(pass, model_.attention_dropout, layer_, "scores");
    if (site.rate > 0)
      task.dropout = {site.rate, site.key, site.samples, part_.heads.begin + run.first_head,
                      model_.max_positions};
    return task;
  }

 protected:
  const ModelSpec& model_;
  const int layer_;
  const LayerStrategy strategy_;
  const TensorPart part_;
};

}  // namespace optimus
