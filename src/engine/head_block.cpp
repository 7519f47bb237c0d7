// The last block: final norm (or BERT's transform), output projection and loss. On a device with the whole
// vocabulary, the forward pass processes a few tokens at a time. It computes the logits, the loss and, in
// place, the gradient of the logits. From this gradient it immediately computes the projection's weight
// gradient and input gradient, which overwrites the input. Logits are therefore computed only once, and only
// the logits of a few tokens are in memory at a time.
//
// Under tensor parallelism, each device has some columns of the logits. The forward pass computes the largest
// logit and the sum of exponentials for each token, and the tensor-parallel ranks exchange these statistics.
// The backward pass recomputes the logits for their gradient.
#include <ATen/TensorOperators.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "base/error.h"
#include "engine/block.h"

namespace optimus {
namespace {

class HeadBlock final : public Block {
 public:
  HeadBlock(const BlockServices& services, const TensorPart& part)
      : services_(services), model_(services.model), part_(part) {}

  void forward(Part, const Pass& pass) override {
    if (!part_.is_sequence_parallel) prepare(pass);
    if (!part_.is_alone())
      return for_each_piece(pass, [&](const Piece& piece) { compute_statistics(pass, piece); });
    at::Tensor input = pass["head.output.input"];
    if (pass.all_logits != nullptr) {
      services_.gemm.forward(input, output(pass).weight, output_bias(pass).weight, *pass.all_logits);
      return;
    }
    at::Tensor losses = pass["head.loss.tokens"];
    for_each_piece(pass, [&](const Piece& piece) {
      at::Tensor logits = piece.logits,
                 piece_losses = losses.narrow(0, piece.begin, piece.input.size(0)).squeeze(1);
      services_.kernels.cross_entropy(logits, piece.targets, piece_losses, pass.gradient_scale);
      if (pass.gradient_scale != 0) apply_logits_gradient(pass, piece);
    });
    pass.loss->add_(losses.sum(at::kDouble));
  }

  void backward_input(Part, const Pass& pass) override {
    if (part_.is_alone()) return backward_through_norms(pass);
    for_each_piece(pass, [&](const Piece& piece) {
      at::Tensor logits = piece.logits;
      const at::Tensor sums = pass["head.logsumexp"].narrow(0, piece.begin, piece.input.size(0)).squeeze(1);
      services_.kernels.loss_gradient(logits, own_targets(piece.targets), sums, pass.gradient_scale);
      apply_logits_gradient(pass, piece);
    });
  }

  void backward_weight(Part, const Pass& pass) override {
    if (!model_.is_bert()) return;
    WeightView transform = (*pass.weights)["head.transform.weight"],
               bias = (*pass.weights)["head.transform.bias"];
    services_.gemm.weight_gradient(pass["head.transform.gradient"], transform_input(pass),
                                   transform.gradient);
    services_.kernels.add_rows(pass["head.transform.gradient"], bias.gradient);
  }

  Exchange begin_exchange(const Instruction& collective, const Pass& pass) override {
    const at::Tensor own_input = pass["head.output.input"];
    const std::int64_t rows = part_.padded_slice(pass.microbatch->num_rows());
    if (collective.op == Op::all_gather) {
      if (collective.serves == Op::forward) prepare(pass);
      return {Exchange::Kind::gather, padded_to(own_input, rows),
              padded_to(pass["head.whole"], rows * part_.tp)};
    }
    if (collective.serves == Op::forward)
      return {Exchange::Kind::gather, pass["head.statistics"], pass["head.statistics.all"]};
    if (!part_.is_sequence_parallel) return {Exchange::Kind::sum, own_input, own_input};
    return {Exchange::Kind::scatter, padded_to(pass["head.whole"], rows * part_.tp),
            padded_to(own_input, rows)};
  }

  std::vector<std::string> overwritten_gradients() const override { return {output_name()}; }

  void end_exchange(const Instruction& collective, const Pass& pass) override {
    if (collective.op == Op::all_gather) return;
    collective.serves == Op::forward ? sum_losses(pass) : backward_through_norms(pass);
  }

 private:
  // Some tokens of the micro-batch, at most as many as the logits buffer has rows.
  struct Piece {
    std::int64_t begin = 0;
    at::Tensor input, logits, targets;
  };
  template <typename Use>
  void for_each_piece(const Pass& pass, Use use) {
    const at::Tensor input = pass[part_.is_sequence_parallel ? "head.whole" : "head.output.input"],
                     logits = pass["head.logits"].narrow(1, 0, part_.vocab.size());
    const std::int64_t rows = input.size(0), max_rows = logits.size(0);
    for (std::int64_t begin = 0; begin < rows; begin += max_rows) {
      const std::int64_t count = std::min(max_rows, rows - begin);
      Piece piece{begin, input.narrow(0, begin, count), logits.narrow(0, 0, count),
                  pass.microbatch->targets.narrow(0, begin, count)};
      services_.gemm.forward(piece.input, output(pass).weight, output_bias(pass).weight, piece.logits);
      use(piece);
    }
  }

  // Computes the statistics of this part's logits that the other tensor-parallel ranks need
  // (Kernels::loss_statistics).
  void compute_statistics(const Pass& pass, const Piece& piece) {
    at::Tensor statistics = pass["head.statistics"].narrow(0, piece.begin, piece.input.size(0));
    services_.kernels.loss_statistics(piece.logits, own_targets(piece.targets), statistics);
  }
  // Computes the losses from the statistics of all tensor-parallel ranks. The loss is log(sum of e^logit)
  // minus the target's logit.
  void sum_losses(const Pass& pass) {
    const std::int64_t rows = pass.microbatch->num_rows();
    const at::Tensor statistics = pass["head.statistics.all"].view({part_.tp, rows, 3});
    const at::Tensor largest_of_parts = statistics.select(2, 0), largest_of_all = largest_of_parts.amax(0);
    const at::Tensor sums =
        ((largest_of_parts - largest_of_all).exp() * statistics.select(2, 1)).sum(0).log() + largest_of_all;
    pass["head.logsumexp"].squeeze(1).copy_(sums);
    const at::Tensor losses = sums - statistics.select(2, 2).sum(0);
    const at::Tensor counted_losses =
        at::where(pass.microbatch->targets.ge(0), losses, at::zeros_like(losses));
    if (part_.is_first()) pass.loss->add_(counted_losses.sum(at::kDouble));
  }
  // Returns the column indices of the targets in this rank's logits. The index is -2 if another rank has the
  // target, and -1 if the target has no loss.
  at::Tensor own_targets(const at::Tensor& targets) const {
    const at::Tensor is_elsewhere = targets.lt(part_.vocab.begin).logical_or(targets.ge(part_.vocab.end));
    const at::Tensor local_targets = (targets - part_.vocab.begin).masked_fill_(is_elsewhere, -2);
    return local_targets.masked_fill_(targets.lt(0), -1);
  }

  // Uses the gradient of the logits, which has overwritten the logits. Adds to the weight gradients, and
  // overwrites the input with the input gradient.
  void apply_logits_gradient(const Pass& pass, const Piece& piece) {
    WeightView weight = output(pass), bias = output_bias(pass);
    at::Tensor input = piece.input;
    services_.gemm.weight_gradient(piece.logits, input, weight.gradient, !pass.is_first || piece.begin > 0);
    if (bias.weight.defined()) services_.kernels.add_rows(piece.logits, bias.gradient);
    services_.gemm.input_gradient(piece.logits, weight.weight, input);
  }

  void backward_through_norms(const Pass& pass) {
    const at::Tensor gradient = pass["head.output.input"];  // for all tokens, or for this device's slice
    at::Tensor input = *pass.input_gradient;
    if (!model_.is_bert()) return backward_through_norm(pass, "head.norm", gradient, input);
    at::Tensor d_transform = pass["head.transform.gradient"], no_gradient;
    backward_through_norm(pass, "head.transform_norm", gradient, d_transform);
    services_.kernels.activation_backward(model_.activation, d_transform, pass["head.transform.output"], {},
                                          d_transform, no_gradient);
    const at::Tensor weight = (*pass.weights)["head.transform.weight"].weight;
    if (model_.norm_position == NormPosition::post)
      return services_.gemm.input_gradient(d_transform, weight, input);
    at::Tensor d_input = pass["input.gradient"];
    services_.gemm.input_gradient(d_transform, weight, d_input);
    backward_through_norm(pass, "head.norm", d_input, input);
  }

  // Computes the projection's input from the residual stream.
  void prepare(const Pass& pass) {
    at::Tensor input = pass["head.output.input"];
    if (!model_.is_bert()) return normalize(pass, "head.norm", input);
    if (model_.norm_position == NormPosition::pre) {
      at::Tensor normed = pass["head.norm.output"];
      normalize(pass, "head.norm", normed);
    }
    at::Tensor transformed = pass["head.transform.output"], activated = pass["head.transform_norm.input"];
    services_.gemm.forward(transform_input(pass), (*pass.weights)["head.transform.weight"].weight,
                           (*pass.weights)["head.transform.bias"].weight, transformed);
    services_.kernels.activation(model_.activation, transformed, {}, activated);
    normalize(pass, "head.transform_norm", input);
  }
  at::Tensor transform_input(const Pass& pass) const {
    return pass[model_.norm_position == NormPosition::pre ? "head.norm.output" : "head.input"];
  }
  const char* output_name() const { return model_.is_tied ? "embedding.words.weight" : "head.output.weight"; }
  WeightView output(const Pass& pass) const { return (*pass.weights)[output_name()]; }
  WeightView output_bias(const Pass& pass) const { return (*pass.weights)["head.output.bias"]; }
  void normalize(const Pass& pass, const std::string& name, at::Tensor& y) const {
    at::Tensor statistics = pass[name + ".statistics"];
    services_.kernels.norm(norm_options(), pass[name + ".input"], (*pass.weights)[name + ".weight"].weight,
                           (*pass.weights)[name + ".bias"].weight, y, statistics);
  }
  void backward_through_norm(const Pass& pass, const std::string& name, const at::Tensor& dy,
                             at::Tensor& dx) const {
    WeightView weight = (*pass.weights)[name + ".weight"], bias = (*pass.weights)[name + ".bias"];
    services_.kernels.norm_backward(norm_options(), dy, pass[name + ".input"], weight.weight,
                                    pass[name + ".statistics"], {}, dx, weight.gradient, bias.gradient);
  }
  NormOptions norm_options() const { return {model_.norm, model_.norm_eps}; }

  const BlockServices& services_;
  const ModelSpec& model_;
  const TensorPart part_;
};

}  // namespace

std::unique_ptr<Block> make_head_block(const BlockServices& services, const TensorPart& part) {
  return std::make_unique<HeadBlock>(services, part);
}

}  // namespace optimus
