// A transformer layer: attention and mlp, with norms before them (GPT-2, Llama) or after the residual sums
// (BERT).
//
//   pre   norm1 -> q k v -> (norms of heads) -> rope -> attention -> out -> + stream;
//         norm2 -> up -> act -> down -> + stream
//   post  q k v -> attention -> out -> + input -> norm1;
//         up -> act -> down -> + norm1 output -> norm2
//
// Activations are [rows, width], where rows are tokens. Without tensor parallelism, the residual stream is
// added inside the last GEMM of each part. With tensor parallelism, a part ends with a GEMM whose result is a
// partial sum. The operations that follow (bias, dropout, stream and norms; in the backward pass norms and
// stream) happen after the collective, in end_exchange. With sequence parallelism, everything outside the
// GEMMs is computed for this device's slice of tokens, and tensors named *.whole contain the gathered
// operands and unreduced results of all tokens. layer_tensors.h names the tensors.
#include <array>
#include <memory>

#include "base/error.h"
#include "engine/block.h"
#include "engine/cache.h"
#include "engine/fp8_gemm.h"
#include "engine/layer_ring_attention.h"
#include "engine/layer_tensors.h"

namespace optimus {
namespace {

class LayerBlock final : public Block, private LayerTensors {
 public:
  LayerBlock(const BlockServices& services, int block, const LayerStrategy& strategy, const TensorPart& part)
      : LayerTensors(services.model, block - 1, strategy, part),
        services_(services),
        head_ranges_(head_ranges(services.model, part)),
        ring_attention_(services, block - 1, part, head_ranges_) {
    if (services.fp8 == nullptr || !services.fp8->has_layer(layer_)) return;
    for (int i = 0; i < kNumLayerGemms; ++i)
      fp8_gemms_[static_cast<std::size_t>(i)] =
          make_fp8_gemm({services.gemm, services.kernels, *services.fp8}, layer_, static_cast<LayerGemm>(i));
  }

  void forward(Part part, const Pass& pass) override {
    switch (part) {
      case Part::attention:
        begin_attention(pass);
        attend(pass);
        return project_attention(pass);
      case Part::attention_input:
        begin_attention(pass);
        return ring_attention_.begin_forward(pass, heads(pass["attention.key"]),
                                             heads(pass["attention.value"]));
      case Part::attention_ring_step:
        return ring_attention_.forward_ring_step(pass, heads(pass["attention.query"]));
      case Part::attention_output:
        ring_attention_.end_forward(pass, heads(pass["attention.output"]));
        return project_attention(pass);
      case Part::mlp:
        return forward_mlp(pass);
      case Part::whole:
      case Part::router:
      case Part::experts:
        ensure(false, "a layer has no part {}", text(part));
    }
  }
  void backward_input(Part part, const Pass& pass) override {
    switch (part) {
      case Part::attention:
        begin_backward_attention(pass);
        attend_backward(pass);
        return backward_attention_input(pass);
      case Part::attention_output:
        begin_backward_attention(pass);
        return ring_attention_.begin_backward(pass, heads(pass["attention.key"]),
                                              heads(pass["attention.value"]));
      case Part::attention_ring_step:
        return ring_attention_.backward_ring_step(pass, heads(pass["attention.output.gradient"]),
                                                  heads(pass["attention.query"]),
                                                  heads(pass["attention.output"]));
      case Part::attention_input:
        ring_attention_.end_backward(pass, heads(pass["attention.query.gradient"]),
                                     heads(pass["attention.key.gradient"]),
                                     heads(pass["attention.value.gradient"]));
        return backward_attention_input(pass);
      case Part::mlp:
        return backward_mlp(pass);
      case Part::whole:
      case Part::router:
      case Part::experts:
        ensure(false, "a layer has no part {}", text(part));
    }
  }
  void backward_weight(Part part, const Pass& pass) override {
    if (part == Part::attention) {
      add_weight_gradient(pass, LayerGemm::out, whole_gradient(pass, part), pass["attention.output"]);
      if (!has_sums_in_norm()) add_bias_gradient(pass, "attention.out", attention_out_gradient(pass));
      add_weight_gradient(pass, LayerGemm::qkv, pass["qkv.gradient"], attention_operand(pass));
      add_bias_gradient(pass, "attention.qkv", pass["qkv.gradient"]);
    } else {
      add_weight_gradient(pass, LayerGemm::down, whole_gradient(pass, part), pass["mlp.activation.output"]);
      if (!has_sums_in_norm()) add_bias_gradient(pass, "mlp.down", mlp_down_gradient(pass));
      const bool is_summed =
          // If stored, the bias gradient was already summed during the conversion to fp8.
          gemm(LayerGemm::up).has_stored_gradient(pass["up.gradient"]);
      add_weight_gradient(pass, LayerGemm::up, pass["up.gradient"], mlp_operand(pass));
      if (!is_summed) add_bias_gradient(pass, up_name(), pass["up.gradient"]);
    }
  }

  std::vector<std::string> overwritten_gradients() const override {
    return {"attention.qkv.weight", "attention.out.weight", std::string(up_name()) + ".weight",
            "mlp.down.weight"};
  }

  Exchange begin_exchange(const Instruction& collective, const Pass& pass) override {
    if (collective.op == Op::ring_exchange) return ring_attention_.exchange(collective, pass);
    const bool is_attention = collective.part == Part::attention;
    if (collective.op != Op::all_gather) return partial_sum(collective, pass);
    at::Tensor from = collective.is_backward ? gradient_to_gather(collective.part, pass)
                                             : input_to_gather(collective, pass);
    const std::string to = is_attention ? "attention.whole" : "mlp.whole";
    return gather(from, pass[collective.is_backward ? to + ".gradient" : to]);
  }

  void end_exchange(const Instruction& collective, const Pass& pass) override {
    if (collective.op == Op::all_gather || collective.op == Op::ring_exchange) return;
    const bool is_attention = collective.part == Part::attention;
    if (collective.serves == Op::backward_input)
      is_attention ? end_backward_attention(pass) : end_backward_mlp(pass);
    else
      is_attention ? end_attention(pass) : end_mlp(pass);
  }

 private:
  Gemm& gemm(LayerGemm layer_gemm) const {
    const std::unique_ptr<Gemm>& fp8_gemm = fp8_gemms_[static_cast<std::size_t>(layer_gemm)];
    return fp8_gemm == nullptr ? services_.gemm : *fp8_gemm;
  }
  void begin_attention(const Pass& pass) {
    if (is_pre() && !uses_sequence_parallel()) normalize_for(pass, "norm1", LayerGemm::qkv);
    at::Tensor qkv = pass["qkv"];
    const Weights joint = weights(pass, "attention.qkv");
    gemm(LayerGemm::qkv).forward(attention_operand(pass), joint.weight, joint.bias, qkv);
    position_heads(pass);
  }
  void project_attention(const Pass& pass) {
    const at::Tensor output = pass["attention.output"];
    const Weights out = weights(pass, "attention.out");
    at::Tensor sum = attention_sum(pass);
    if (part_.is_alone()) {
      add_to_stream(pass, LayerGemm::out, output, stream_in(pass), sum);
      if (!is_pre()) normalize(pass, "norm1");
      return;
    }
    if (uses_sequence_parallel()) sum = pass["attention.whole"];
    gemm(LayerGemm::out).forward(output, out.weight, {}, sum);
  }
  void end_attention(const Pass& pass) {
    at::Tensor sum = attention_sum(pass);
    add_stream(pass, weights(pass, "attention.out").bias, stream_in(pass), "attention", sum);
    if (!is_pre()) normalize(pass, "norm1");
  }

  void forward_mlp(const Pass& pass) {
    if (is_pre() && !uses_sequence_parallel()) normalize_for(pass, "norm2", LayerGemm::up);
    at::Tensor up = pass["up"], activated = pass["mlp.activation.output"];
    const Weights joint = weights(pass, up_name()), down = weights(pass, "mlp.down");
    gemm(LayerGemm::up).forward(mlp_operand(pass), joint.weight, joint.bias, up);
    activate(pass, activated);
    if (!has_mlp_sum(pass)) return;
    at::Tensor sum = mlp_sum(pass);
    if (part_.is_alone()) {
      add_to_stream(pass, LayerGemm::down, activated, mlp_stream(pass), sum);
      return end_with_norm(pass);
    }
    if (uses_sequence_parallel()) sum = pass["mlp.whole"];
    gemm(LayerGemm::down).forward(activated, down.weight, {}, sum);
  }
  void end_mlp(const Pass& pass) {
    at::Tensor sum = mlp_sum(pass);
    add_stream(pass, weights(pass, "mlp.down").bias, mlp_stream(pass), "mlp", sum);
    end_with_norm(pass);
  }
  void end_with_norm(const Pass& pass) {
    if (is_pre() || !has_output(pass)) return;
    const Weights norm = weights(pass, "norm2");
    at::Tensor y = output(pass), statistics = pass["norm2.statistics"];
    services_.kernels.norm(norm_options(), pass["norm2.input"], norm.weight, norm.bias, y, statistics);
  }

  // Prepares q and k for attention by normalizing each head and then applying the rotary embedding.
  void position_heads(const Pass& pass) {
    at::Tensor q = heads(pass["attention.query"]), k = heads(pass["attention.key"]);
    if (model_.has_qk_norm) {
      at::Tensor q_statistics = pass["attention.q_norm.statistics"].unsqueeze(2),
                 k_statistics = pass["attention.k_norm.statistics"].unsqueeze(2);
      services_.kernels.norm(norm_options(), heads(pass["attention.q_norm.input"]),
                             weights(pass, "attention.q_norm").weight, {}, q, q_statistics);
      services_.kernels.norm(norm_options(), heads(pass["attention.k_norm.input"]),
                             weights(pass, "attention.k_norm").weight, {}, k, k_statistics);
    }
    rotate(pass, q, k, false);
  }
  void rotate(const Pass& pass, at::Tensor& q, at::Tensor& k, bool is_backward) {
    if (!services_.cosine.defined()) return;
    // If q and k are adjacent columns of one matrix, one call rotates the heads of both.
    if (q.strides() == k.strides() && k.storage_offset() == q.storage_offset() + q.size(1) * q.stride(1)) {
      at::Tensor qk = q.as_strided({q.size(0), q.size(1) + k.size(1), q.size(2)}, q.strides());
      services_.kernels.rope(qk, services_.cosine, services_.sine, pass.microbatch->positions, is_backward);
      return;
    }
    services_.kernels.rope(q, services_.cosine, services_.sine, pass.microbatch->positions, is_backward);
    services_.kernels.rope(k, services_.cosine, services_.sine, pass.microbatch->positions, is_backward);
  }

  void attend(const Pass& pass) {
    const at::Tensor q = heads(pass["attention.query"]), k = heads(pass["attention.key"]),
                     v = heads(pass["attention.value"]), outputs = heads(pass["attention.output"]);
    for (const HeadRange& run : head_ranges_) {
      at::Tensor output = select_query_heads(outputs, run), sums = logsumexp(pass, run);
      const at::Tensor queries = select_query_heads(q, run), keys = select_kv_heads(k, run),
                       values = select_kv_heads(v, run);
      if (pass.cache != nullptr)
        pass.cache->attend(layer_, queries, keys, values, output);
      else
        services_.attention.forward(task(pass, run), queries, keys, values, output, sums);
    }
  }
  void attend_backward(const Pass& pass) {
    const at::Tensor q = heads(pass["attention.query"]), k = heads(pass["attention.key"]),
                     v = heads(pass["attention.value"]), output = heads(pass["attention.output"]),
                     d_attended = pass["attention.output.gradient"];
    at::Tensor dq = heads(pass["attention.query.gradient"]), dk = heads(pass["attention.key.gradient"]),
               dv = heads(pass["attention.value.gradient"]);
    for (const HeadRange& run : head_ranges_) {
      at::Tensor run_dq = select_query_heads(dq, run), run_dk = select_kv_heads(dk, run),
                 run_dv = select_kv_heads(dv, run);
      services_.attention.backward(task(pass, run), select_query_heads(heads(d_attended), run),
                                   select_query_heads(q, run), select_kv_heads(k, run),
                                   select_kv_heads(v, run), select_query_heads(output, run),
                                   logsumexp(pass, run), run_dq, run_dk, run_dv);
    }
  }

  // sum = x + dropout(W input + bias), in as few passes as possible.
  void add_to_stream(const Pass& pass, LayerGemm layer_gemm, const at::Tensor& input, const at::Tensor& x,
                     at::Tensor& sum) {
    const Weights linear = weights(pass, name_of(layer_gemm));
    const DropoutSite dropout = dropout_of(pass, layer_gemm == LayerGemm::out ? "attention" : "mlp");
    if (dropout.rate > 0) {
      gemm(layer_gemm).forward(input, linear.weight, {}, sum);
      services_.kernels.add(sum, linear.bias, x, dropout, sum);
    } else {
      gemm(layer_gemm).forward_with_residual(input, linear.weight, linear.bias, x, sum);
    }
  }
  // Like add_to_stream(), but `sum` already contains the result of the GEMM.
  void add_stream(const Pass& pass, const at::Tensor& bias, const at::Tensor& x, std::string_view site,
                  at::Tensor& sum) {
    services_.kernels.add(sum, bias, x, dropout_of(pass, site), sum);
  }

  // Returns the gradient of the residual sum at the end of the mlp.
  at::Tensor mlp_sum_gradient(const Pass& pass) {
    at::Tensor stream = pass["output.gradient"];
    if (is_pre()) return stream;
    at::Tensor sum = pass["mlp.sum.gradient"];
    backward_through_norm(pass, "norm2", stream, {}, sum);
    return sum;
  }

  void backward_mlp(const Pass& pass) {
    if (strategy_.recompute == RecomputeMode::selective) {
      if (!uses_sequence_parallel())
        is_pre() ? normalize_for(pass, "norm2", LayerGemm::up) : normalize(pass, "norm1");
      at::Tensor activated = pass["mlp.activation.output"];
      activate(pass, activated);
    }
    at::Tensor stream, d_down = mlp_down_gradient(pass);
    if (!uses_sequence_parallel()) {
      stream = mlp_sum_gradient(pass);
      mask_gradient(pass, stream, "mlp", d_down);
    }
    at::Tensor d_up = pass["mlp.up.gradient"],
               d_gate = model_.is_gated ? pass["mlp.gate.gradient"] : at::Tensor();
    at::Tensor d_activated = model_.is_gated ? pass["mlp.activation.gradient"] : d_up;
    const at::Tensor d_output = whole_gradient(pass, Part::mlp), down = weights(pass, "mlp.down").weight;
    Gemm& down_gemm = gemm(LayerGemm::down);
    if (up_accepts_gradient(pass)) {
      at::Tensor bias_gradient = weights(pass, up_name()).bias_gradient;
      down_gemm.input_gradient(d_output, down, d_activated);
      gemm(LayerGemm::up)
          .accept_gradient(model_.activation, d_activated, pass["mlp.up.output"], gate(pass),
                           pass["up.gradient"], bias_gradient);
    } else if (model_.is_gated || !down_gemm.input_gradient_through_activation(
                                      model_.activation, d_output, down, pass["mlp.up.output"], d_up)) {
      down_gemm.input_gradient(d_output, down, d_activated);
      services_.kernels.activation_backward(model_.activation, d_activated, pass["mlp.up.output"], gate(pass),
                                            d_up, d_gate);
    }
    at::Tensor d_input = pass["input.gradient"], middle = pass["middle.gradient"];
    const at::Tensor weight = weights(pass, up_name()).weight;
    const bool adds = part_.is_alone() && !is_pre();
    gemm(LayerGemm::up).input_gradient(pass["up.gradient"], weight, d_input, adds ? stream : at::Tensor());
    if (!part_.is_alone()) return;
    is_pre() ? backward_through_norm2(pass, d_input, stream, middle)
             : backward_through_norm(pass, "norm1", d_input, {}, middle);
  }
  void end_backward_mlp(const Pass& pass) {
    at::Tensor middle = pass["middle.gradient"],
               summed = uses_sequence_parallel() ? middle : pass["input.gradient"];
    const at::Tensor stream = pass[is_pre() ? "output.gradient" : "mlp.sum.gradient"];
    if (is_pre()) return backward_through_norm2(pass, summed, stream, middle);
    services_.kernels.add(summed, {}, stream, {}, summed);
    backward_through_norm(pass, "norm1", summed, {}, middle);
  }
  // Returns whether gemm(up) can store the gradient of its output in its own format (Gemm::accept_gradient).
  // This is allowed because nothing else reads that gradient.
  bool up_accepts_gradient(const Pass& pass) const {
    return gemm(LayerGemm::up)
        .accepts_gradients(weights(pass, up_name()).weight, pass["up.gradient"].size(0));
  }
  void backward_through_norm2(const Pass& pass, const at::Tensor& dy, const at::Tensor& stream,
                              at::Tensor& middle) const {
    if (!has_sums_in_norm()) return backward_through_norm(pass, "norm2", dy, stream, middle);
    Weights norm = weights(pass, "norm2");
    StreamSums sums{weights(pass, "mlp.down").bias_gradient, weights(pass, "attention.out").bias_gradient};
    services_.kernels.norm_backward_with_sums(norm_options(), dy, pass["norm2.input"], norm.weight,
                                              pass["norm2.statistics"], stream, middle, norm.weight_gradient,
                                              norm.bias_gradient, sums);
  }

  void begin_backward_attention(const Pass& pass) {
    if (strategy_.recompute == RecomputeMode::selective) {
      if (is_pre() && !uses_sequence_parallel()) normalize_for(pass, "norm1", LayerGemm::qkv);
      if (model_.has_qk_norm) position_heads(pass);
    }
    const at::Tensor stream = pass["middle.gradient"];
    at::Tensor d_out = attention_out_gradient(pass), d_attended = pass["attention.output.gradient"];
    if (!uses_sequence_parallel()) mask_gradient(pass, stream, "attention", d_out);
    gemm(LayerGemm::out)
        .input_gradient(whole_gradient(pass, Part::attention), weights(pass, "attention.out").weight,
                        d_attended);
  }
  void backward_attention_input(const Pass& pass) {
    const at::Tensor stream = pass["middle.gradient"];
    at::Tensor dq = heads(pass["attention.query.gradient"]), dk = heads(pass["attention.key.gradient"]);
    rotate(pass, dq, dk, true);
    if (model_.has_qk_norm) {
      backward_through_head_norm(pass, "attention.q_norm", dq);
      backward_through_head_norm(pass, "attention.k_norm", dk);
    }
    const at::Tensor weight = weights(pass, "attention.qkv").weight;
    at::Tensor input = input_gradient(pass);
    if (is_pre() || uses_sequence_parallel()) {
      at::Tensor d_input = pass["input.gradient"];
      gemm(LayerGemm::qkv).input_gradient(pass["qkv.gradient"], weight, d_input);
      if (part_.is_alone()) backward_through_norm(pass, "norm1", d_input, stream, input);
    } else {
      gemm(LayerGemm::qkv)
          .input_gradient(pass["qkv.gradient"], weight, input, part_.is_alone() ? stream : at::Tensor());
    }
  }
  void end_backward_attention(const Pass& pass) {
    const at::Tensor stream = pass["middle.gradient"];
    at::Tensor input = input_gradient(pass);
    if (is_pre())
      backward_through_norm(pass, "norm1", uses_sequence_parallel() ? input : pass["input.gradient"], stream,
                            input);
    else
      services_.kernels.add(input, {}, stream, {}, input);
  }
  void backward_through_head_norm(const Pass& pass, const std::string& name, at::Tensor& gradient) {
    Weights norm = weights(pass, name);
    at::Tensor no_gradient;
    services_.kernels.norm_backward(norm_options(), gradient, heads(pass[name + ".input"]), norm.weight,
                                    pass[name + ".statistics"].unsqueeze(2), {}, gradient,
                                    norm.weight_gradient, no_gradient);
  }

  void mask_gradient(const Pass& pass, const at::Tensor& stream, std::string_view site,
                     at::Tensor& to) const {
    if (model_.hidden_dropout > 0) services_.kernels.dropout_backward(stream, dropout_of(pass, site), to);
  }

  // ---- collectives
  Exchange partial_sum(const Instruction& collective, const Pass& pass) const {
    const bool is_attention = collective.part == Part::attention;
    at::Tensor whole, own_part;
    if (collective.serves == Op::backward_input) {
      own_part = is_attention ? input_gradient(pass) : pass["middle.gradient"];
      whole = is_attention && !is_pre() && !uses_sequence_parallel() ? own_part : pass["input.gradient"];
    } else {
      if (!is_attention && !has_mlp_sum(pass)) return {};
      own_part = is_attention ? attention_sum(pass) : mlp_sum(pass);
      whole = uses_sequence_parallel() ? pass[is_attention ? "attention.whole" : "mlp.whole"] : own_part;
    }
    if (!uses_sequence_parallel()) return {Exchange::Kind::sum, whole, whole};
    const std::int64_t rows = part_.padded_slice(whole.size(0));
    return {Exchange::Kind::scatter, padded_to(whole, rows * part_.tp), padded_to(own_part, rows)};
  }
  Exchange gather(const at::Tensor& slice, const at::Tensor& whole) const {
    const std::int64_t rows = part_.padded_slice(whole.size(0));
    return {Exchange::Kind::gather, padded_to(slice, rows), padded_to(whole, rows * part_.tp)};
  }
  at::Tensor gradient_to_gather(Part part, const Pass& pass) {
    const bool is_attention = part == Part::attention;
    const at::Tensor stream = is_attention ? pass["middle.gradient"] : mlp_sum_gradient(pass);
    at::Tensor gradient = is_attention ? attention_out_gradient(pass) : mlp_down_gradient(pass);
    mask_gradient(pass, stream, is_attention ? "attention" : "mlp", gradient);
    return gradient;
  }
  // Returns the input of the part's first GEMM, which is gathered for the forward pass and again for weight
  // gradients. Norm outputs that selective recompute did not save are recomputed.
  at::Tensor input_to_gather(const Instruction& collective, const Pass& pass) {
    const bool is_attention = collective.part == Part::attention,
               is_first_time = collective.serves != Op::backward_weight;
    const bool must_recompute = strategy_.recompute == RecomputeMode::selective;
    if (is_attention) {
      if (is_pre() && (is_first_time || must_recompute)) normalize(pass, "norm1");
      return attention_input(pass);
    }
    if (is_pre() ? is_first_time || must_recompute : !is_first_time && must_recompute)
      normalize(pass, is_pre() ? "norm2" : "norm1");
    return mlp_input(pass);
  }

  void normalize(const Pass& pass, const std::string& name) const {
    const Weights norm = weights(pass, name);
    at::Tensor y = pass[name + ".output"], statistics = pass[name + ".statistics"];
    services_.kernels.norm(norm_options(), pass[name + ".input"], norm.weight, norm.bias, y, statistics);
  }
  // Normalizes into the format that `reader`, the only GEMM that reads the output, prefers. It may be fp8.
  void normalize_for(const Pass& pass, const std::string& name, LayerGemm reader) const {
    const at::Tensor weight = weights(pass, name_of(reader)).weight;
    std::optional<Fp8Output> fp8_output =
        gemm(reader).input_destination(pass[name + ".output"], weight, /*transposes=*/false);
    if (!fp8_output) return normalize(pass, name);
    const Weights norm = weights(pass, name);
    at::Tensor statistics = pass[name + ".statistics"];
    services_.kernels.norm_to_fp8(norm_options(), pass[name + ".input"], norm.weight, norm.bias, statistics,
                                  *fp8_output);
  }
  void activate(const Pass& pass, at::Tensor& to) const {
    const at::Tensor weight = weights(pass, "mlp.down").weight;
    std::optional<Fp8Output> fp8_output =
        gemm(LayerGemm::down).input_destination(to, weight, /*transposes=*/true);
    if (fp8_output)
      services_.kernels.activation_to_fp8(model_.activation, pass["mlp.up.output"], gate(pass), *fp8_output);
    else
      services_.kernels.activation(model_.activation, pass["mlp.up.output"], gate(pass), to);
  }
  void backward_through_norm(const Pass& pass, const std::string& name, const at::Tensor& dy,
                             const at::Tensor& residual, at::Tensor& dx) const {
    Weights norm = weights(pass, name);
    services_.kernels.norm_backward(norm_options(), dy, pass[name + ".input"], norm.weight,
                                    pass[name + ".statistics"], residual, dx, norm.weight_gradient,
                                    norm.bias_gradient);
  }
  void add_weight_gradient(const Pass& pass, LayerGemm layer_gemm, const at::Tensor& dy,
                           const at::Tensor& x) const {
    Weights linear = weights(pass, name_of(layer_gemm));
    gemm(layer_gemm).weight_gradient(dy, x, linear.weight_gradient, !pass.is_first);
  }
  void add_bias_gradient(const Pass& pass, const std::string& name, const at::Tensor& dy) const {
    Weights linear = weights(pass, name);
    if (linear.bias_gradient.defined()) services_.kernels.add_rows(dy, linear.bias_gradient);
  }

  const BlockServices& services_;
  const std::vector<HeadRange> head_ranges_;
  const LayerRingAttention ring_attention_;
  std::array<std::unique_ptr<Gemm>, kNumLayerGemms> fp8_gemms_;  // null if the layer does not compute in fp8
};

}  // namespace

std::unique_ptr<Block> make_layer_block(const BlockServices& services, int block,
                                        const LayerStrategy& strategy, const TensorPart& part) {
  return std::make_unique<LayerBlock>(services, block, strategy, part);
}

}  // namespace optimus
