// A transformer layer: attention and mlp, with norms before (GPT-2, Llama) or behind the sums (BERT).
//
//   pre   norm1 -> q k v -> (norms of heads) -> rope -> attention -> out -> + stream;   norm2 -> up -> act -> down -> + stream
//   post  q k v -> attention -> out -> + input -> norm1;                                up -> act -> down -> + -> norm2
//
// The stream is added inside the last product of each part. Shapes: rows are tokens, [rows, width].
#include "base/error.h"
#include "engine/block.h"
#include "engine/cache.h"

namespace optimus {
namespace {

// Weight and bias of a product or a norm, and the accumulators of their gradients.
struct Weights {
  at::Tensor weight, bias, weight_gradient, bias_gradient;
  Weights() = default;
  Weights(const Parameters& parameters, const std::string& name)
      : weight(parameters.weight(name + ".weight")),
        bias(parameters.weight(name + ".bias")),
        weight_gradient(parameters.gradient(name + ".weight")),
        bias_gradient(parameters.gradient(name + ".bias")) {}
};

class LayerBlock final : public Block {
 public:
  LayerBlock(const Tools& tools, const Parameters& parameters, int block, const LayerStrategy& strategy)
      : tools_(tools), model_(tools.model), layer_(block - 1), strategy_(strategy) {
    const std::string name = fmt::format("layers.{}.", layer_);
    qkv_ = {parameters, name + "attention.qkv"}, out_ = {parameters, name + "attention.out"};
    up_ = {parameters, name + (model_.is_gated ? "mlp.gate_up" : "mlp.up")},
    down_ = {parameters, name + "mlp.down"};
    norm1_ = {parameters, name + "norm1"}, norm2_ = {parameters, name + "norm2"};
    if (model_.has_qk_norm)
      q_norm_ = {parameters, name + "attention.q_norm"}, k_norm_ = {parameters, name + "attention.k_norm"};
  }

  void forward(Part part, const Pass& pass) override {
    part == Part::attention ? forward_attention(pass) : forward_mlp(pass);
  }
  void backward_input(Part part, const Pass& pass) override {
    part == Part::attention ? backward_attention(pass) : backward_mlp(pass);
  }
  void backward_weight(Part part, const Pass& pass) override {
    if (part == Part::attention) {
      add_weight_gradient(pass, out_, attention_out_gradient(pass), pass["attention.output"],
                          has_sums_in_norm());
      add_weight_gradient(pass, qkv_, pass["qkv.gradient"], attention_input(pass));
    } else {
      add_weight_gradient(pass, down_, mlp_down_gradient(pass), pass["mlp.activation.output"],
                          has_sums_in_norm());
      add_weight_gradient(pass, up_, pass["up.gradient"], mlp_input(pass));
    }
  }

  std::vector<at::Tensor> first_written() const override {
    return {qkv_.weight_gradient, out_.weight_gradient, up_.weight_gradient, down_.weight_gradient};
  }

 private:
  bool is_pre() const { return model_.norm_place == NormPlace::pre; }
  at::Tensor attention_input(const Pass& pass) const {
    return pass[is_pre() ? "norm1.output" : "attention.input"];
  }
  at::Tensor mlp_input(const Pass& pass) const { return pass[is_pre() ? "norm2.output" : "norm1.output"]; }
  at::Tensor gate(const Pass& pass) const { return model_.is_gated ? pass["mlp.gate.output"] : at::Tensor(); }

  void forward_attention(const Pass& pass) {
    const at::Tensor x = pass[input_name(model_, BlockKind::layer)];
    if (is_pre()) normalize(norm1_, pass, "norm1");
    at::Tensor qkv = pass["qkv"], output = pass["attention.output"];
    tools_.products.forward(attention_input(pass), qkv_.weight, qkv_.bias, qkv);
    position_heads(pass);
    attend(pass);
    at::Tensor sum = pass[is_pre() ? "norm2.input" : "norm1.input"];
    add_to_stream(pass, out_, output, x, "attention", sum);
    if (!is_pre()) normalize(norm1_, pass, "norm1");
  }

  void forward_mlp(const Pass& pass) {
    if (is_pre()) normalize(norm2_, pass, "norm2");
    const at::Tensor x = pass[is_pre() ? "norm2.input" : "norm1.output"];
    at::Tensor up = pass["up"], activated = pass["mlp.activation.output"];
    tools_.products.forward(mlp_input(pass), up_.weight, up_.bias, up);
    tools_.kernels.activation(model_.activation, pass["mlp.up.output"], gate(pass), activated);
    // Computed again for the layer above; behind the sums (post) also for its statistics, which layers of a group do not keep.
    const bool has_output =
        !pass.is_recompute || pass.next != nullptr || (!is_pre() && strategy_.recompute_layers > 1);
    if (is_pre() && !has_output) return;
    at::Tensor sum = is_pre() ? output(pass) : pass["norm2.input"];
    add_to_stream(pass, down_, activated, x, "mlp", sum);
    if (is_pre() || !has_output) return;
    at::Tensor y = output(pass), statistics = pass["norm2.statistics"];
    tools_.kernels.norm(norm_options(), sum, norm2_.weight, norm2_.bias, y, statistics);
  }

  // q and k as attention sees them: through the norms of single heads, then turned by their positions.
  void position_heads(const Pass& pass) {
    at::Tensor q = heads(pass["attention.query"]), k = heads(pass["attention.key"]);
    if (model_.has_qk_norm) {
      at::Tensor q_statistics = pass["attention.q_norm.statistics"].unsqueeze(2),
                 k_statistics = pass["attention.k_norm.statistics"].unsqueeze(2);
      tools_.kernels.norm(norm_options(), heads(pass["attention.q_norm.input"]), q_norm_.weight, {}, q,
                          q_statistics);
      tools_.kernels.norm(norm_options(), heads(pass["attention.k_norm.input"]), k_norm_.weight, {}, k,
                          k_statistics);
    }
    rotate(pass, q, k, false);
  }
  void rotate(const Pass& pass, at::Tensor& q, at::Tensor& k, bool is_backward) {
    if (!tools_.cosine.defined()) return;
    // Columns of one matrix, side by side: heads of both are turned alike, so in one pass.
    if (q.strides() == k.strides() && k.storage_offset() == q.storage_offset() + q.size(1) * q.stride(1)) {
      at::Tensor both = q.as_strided({q.size(0), q.size(1) + k.size(1), q.size(2)}, q.strides());
      tools_.kernels.rope(both, tools_.cosine, tools_.sine, pass.microbatch->positions, is_backward);
      return;
    }
    tools_.kernels.rope(q, tools_.cosine, tools_.sine, pass.microbatch->positions, is_backward);
    tools_.kernels.rope(k, tools_.cosine, tools_.sine, pass.microbatch->positions, is_backward);
  }

  void attend(const Pass& pass) {
    at::Tensor output = heads(pass["attention.output"]), sums = logsumexp(pass);
    const at::Tensor q = heads(pass["attention.query"]), k = heads(pass["attention.key"]),
                     v = heads(pass["attention.value"]);
    if (pass.cache != nullptr)
      pass.cache->attend(layer_, q, k, v, output);
    else
      tools_.attention.forward(task(pass), q, k, v, output, sums);
  }

  // sum = x + dropout(product + bias), in as few passes as there can be.
  void add_to_stream(const Pass& pass, const Weights& linear, const at::Tensor& input, const at::Tensor& x,
                     std::string_view site, at::Tensor& sum) {
    const DropoutSite dropout = dropout_site(pass, model_.hidden_dropout, layer_, site);
    if (dropout.rate > 0) {
      tools_.products.forward(input, linear.weight, {}, sum);
      tools_.kernels.add(sum, linear.bias, x, dropout, sum);
    } else {
      tools_.products.forward_onto(input, linear.weight, linear.bias, x, sum);
    }
  }

  void backward_mlp(const Pass& pass) {
    if (strategy_.recompute == RecomputeMode::selective) {
      is_pre() ? normalize(norm2_, pass, "norm2") : normalize(norm1_, pass, "norm1");
      at::Tensor activated = pass["mlp.activation.output"];
      tools_.kernels.activation(model_.activation, pass["mlp.up.output"], gate(pass), activated);
    }
    at::Tensor stream = pass["output.gradient"];  // of the sum that the part ends with
    if (!is_pre()) {
      at::Tensor sum = pass["mlp.sum.gradient"];
      through_norm(norm2_, stream, pass, "norm2", {}, sum);
      stream = sum;
    }
    at::Tensor d_down = mlp_down_gradient(pass);
    mask_gradient(pass, stream, "mlp", d_down);
    at::Tensor d_up = pass["mlp.up.gradient"],
               d_gate = model_.is_gated ? pass["mlp.gate.gradient"] : at::Tensor();
    at::Tensor d_activated = model_.is_gated ? pass["mlp.activation.gradient"] : d_up;
    if (model_.is_gated || !tools_.products.input_gradient_through(model_.activation, d_down, down_.weight,
                                                                   pass["mlp.up.output"], d_up)) {
      tools_.products.input_gradient(d_down, down_.weight, d_activated);
      tools_.kernels.activation_backward(model_.activation, d_activated, pass["mlp.up.output"], gate(pass),
                                         d_up, d_gate);
    }
    at::Tensor d_input = pass["input.gradient"], middle = pass["middle.gradient"];
    if (is_pre()) {
      tools_.products.input_gradient(pass["up.gradient"], up_.weight, d_input);
      if (has_sums_in_norm()) {
        StreamSums sums{down_.bias_gradient, out_.bias_gradient};
        tools_.kernels.norm_backward_with_sums(norm_options(), d_input, pass["norm2.input"], norm2_.weight,
                                               pass["norm2.statistics"], stream, middle,
                                               norm2_.weight_gradient, norm2_.bias_gradient, sums);
      } else {
        through_norm(norm2_, d_input, pass, "norm2", stream, middle);
      }
    } else {
      d_input.copy_(stream);
      tools_.products.input_gradient(pass["up.gradient"], up_.weight, d_input, true);
      through_norm(norm1_, d_input, pass, "norm1", {}, middle);
    }
  }

  void backward_attention(const Pass& pass) {
    if (strategy_.recompute == RecomputeMode::selective) {
      if (is_pre()) normalize(norm1_, pass, "norm1");
      if (model_.has_qk_norm) position_heads(pass);
    }
    const at::Tensor stream = pass["middle.gradient"];
    at::Tensor d_out = attention_out_gradient(pass), d_attended = pass["attention.output.gradient"];
    mask_gradient(pass, stream, "attention", d_out);
    tools_.products.input_gradient(d_out, out_.weight, d_attended);
    at::Tensor dq = heads(pass["attention.query.gradient"]), dk = heads(pass["attention.key.gradient"]),
               dv = heads(pass["attention.value.gradient"]);
    tools_.attention.backward(task(pass), heads(d_attended), heads(pass["attention.query"]),
                              heads(pass["attention.key"]), heads(pass["attention.value"]),
                              heads(pass["attention.output"]), logsumexp(pass), dq, dk, dv);
    rotate(pass, dq, dk, true);
    if (model_.has_qk_norm) {
      at::Tensor none;
      tools_.kernels.norm_backward(norm_options(), dq, heads(pass["attention.q_norm.input"]), q_norm_.weight,
                                   pass["attention.q_norm.statistics"].unsqueeze(2), {}, dq,
                                   q_norm_.weight_gradient, none);
      tools_.kernels.norm_backward(norm_options(), dk, heads(pass["attention.k_norm.input"]), k_norm_.weight,
                                   pass["attention.k_norm.statistics"].unsqueeze(2), {}, dk,
                                   k_norm_.weight_gradient, none);
    }
    at::Tensor input = input_gradient(pass);
    if (is_pre()) {
      at::Tensor d_input = pass["input.gradient"];
      tools_.products.input_gradient(pass["qkv.gradient"], qkv_.weight, d_input);
      through_norm(norm1_, d_input, pass, "norm1", stream, input);
    } else {
      input.copy_(stream);
      tools_.products.input_gradient(pass["qkv.gradient"], qkv_.weight, input, true);
    }
  }

  // Gradients of the two products that end in the stream: the stream's own, or behind dropout's mask.
  at::Tensor mlp_down_gradient(const Pass& pass) const {
    if (model_.hidden_dropout > 0) return pass["mlp.down.gradient"];
    return pass[is_pre() ? "output.gradient" : "mlp.sum.gradient"];
  }
  at::Tensor attention_out_gradient(const Pass& pass) const {
    return pass[model_.hidden_dropout > 0 ? "attention.out.gradient" : "middle.gradient"];
  }
  void mask_gradient(const Pass& pass, const at::Tensor& stream, std::string_view site,
                     at::Tensor& to) const {
    if (model_.hidden_dropout > 0)
      tools_.kernels.dropout_backward(stream, dropout_site(pass, model_.hidden_dropout, layer_, site), to);
  }

  void normalize(const Weights& norm, const Pass& pass, const std::string& name) const {
    at::Tensor y = pass[name + ".output"], statistics = pass[name + ".statistics"];
    tools_.kernels.norm(norm_options(), pass[name + ".input"], norm.weight, norm.bias, y, statistics);
  }
  void through_norm(Weights& norm, const at::Tensor& dy, const Pass& pass, const std::string& name,
                    const at::Tensor& residual, at::Tensor& dx) const {
    tools_.kernels.norm_backward(norm_options(), dy, pass[name + ".input"], norm.weight,
                                 pass[name + ".statistics"], residual, dx, norm.weight_gradient,
                                 norm.bias_gradient);
  }
  void add_weight_gradient(const Pass& pass, Weights& linear, const at::Tensor& dy, const at::Tensor& x,
                           bool has_bias_sum = false) const {
    tools_.products.weight_gradient(dy, x, linear.weight_gradient, !pass.is_first);
    if (linear.bias.defined() && !has_bias_sum) tools_.kernels.add_rows(dy, linear.bias_gradient);
  }
  // The second norm's backward sees the gradients of both products that end in the stream: it sums them for their biases.
  bool has_sums_in_norm() const {
    return is_pre() && model_.hidden_dropout == 0 && out_.bias.defined() && down_.bias.defined();
  }

  at::Tensor output(const Pass& pass) const { return pass.next ? *pass.next : pass["norm2.output"]; }
  at::Tensor input_gradient(const Pass& pass) const { return *pass.below; }
  NormOptions norm_options() const { return {model_.norm, model_.norm_eps}; }
  // [rows, width] -> [rows, heads, head_dim]
  at::Tensor heads(const at::Tensor& x) const { return x.unflatten(1, {-1, model_.head_dim}); }
  // [sequences, heads, length]
  at::Tensor logsumexp(const Pass& pass) const {
    return pass["attention.logsumexp"].view({-1, model_.heads, pass.sequence_length});
  }
  AttentionTask task(const Pass& pass) const {
    AttentionTask task;
    task.shape = {.sequences = std::ssize(pass.microbatch->host->samples),
                  .length = pass.sequence_length,
                  .heads = model_.heads,
                  .kv_heads = model_.kv_heads,
                  .head_dim = model_.head_dim,
                  .is_causal = model_.is_causal,
                  .scale = 1 / std::sqrt(static_cast<double>(model_.head_dim))};
    task.segments = pass.microbatch->host->segments;
    const DropoutSite site = dropout_site(pass, model_.attention_dropout, layer_, "scores");
    if (site.rate > 0) task.dropout = {site.rate, site.key, site.samples, 0, model_.max_positions};
    return task;
  }

  const Tools& tools_;
  const ModelSpec& model_;
  int layer_;
  const LayerStrategy strategy_;
  Weights qkv_, out_, up_, down_, norm1_, norm2_, q_norm_, k_norm_;
};

}  // namespace

std::unique_ptr<Block> make_layer_block(const Tools& tools, const Parameters& parameters, int block,
                                        const LayerStrategy& strategy) {
  return std::make_unique<LayerBlock>(tools, parameters, block, strategy);
}

}  // namespace optimus
