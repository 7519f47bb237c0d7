// The last block: final norm (or BERT's transform), output projection and loss. The forward goes over some tokens at a time:
// logits, loss, their gradient in place, and from it at once the projection's weight gradient and the gradient of its input,
// which takes the input's place. So logits are computed once and all of them are never in memory.
#include "base/error.h"
#include "engine/block.h"

namespace optimus {
namespace {

class HeadBlock final : public Block {
 public:
  HeadBlock(const Tools& tools, const Parameters& parameters) : tools_(tools), model_(tools.model) {
    const auto pair = [&](const std::string& name) {
      return Weight{parameters.weight(name), parameters.gradient(name)};
    };
    norm_weight_ = pair("head.norm.weight"), norm_bias_ = pair("head.norm.bias");
    transform_ = pair("head.transform.weight"), transform_bias_ = pair("head.transform.bias");
    transform_norm_ = pair("head.transform_norm.weight"),
    transform_norm_bias_ = pair("head.transform_norm.bias");
    output_ = pair(model_.is_tied ? "embedding.words.weight" : "head.output.weight");
    output_bias_ = pair("head.output.bias");
    ensure(output_.weight.defined(), "the model has no output projection");
  }

  void forward(Part, const Pass& pass) override {
    at::Tensor input = pass["head.output.input"];
    prepare(pass, input);
    if (pass.all_logits != nullptr) {
      tools_.products.forward(input, output_.weight, output_bias_.weight, *pass.all_logits);
      return;
    }
    at::Tensor targets = pass["head.loss.targets"], losses = pass["head.loss.tokens"],
               logits = pass["head.logits"];
    targets.copy_(pass.microbatch->targets.unsqueeze(1));
    const std::int64_t rows = input.size(0), chunk = logits.size(0);
    for (std::int64_t begin = 0; begin < rows; begin += chunk) {
      const std::int64_t count = std::min(chunk, rows - begin);
      at::Tensor some = input.narrow(0, begin, count), some_logits = logits.narrow(0, 0, count),
                 some_losses = losses.narrow(0, begin, count).squeeze(1);
      tools_.products.forward(some, output_.weight, output_bias_.weight, some_logits);
      tools_.kernels.cross_entropy(some_logits, targets.narrow(0, begin, count).squeeze(1), some_losses,
                                   pass.gradient_scale);
      if (pass.gradient_scale == 0) continue;
      tools_.products.weight_gradient(some_logits, some, output_.gradient, !pass.is_first || begin > 0);
      if (output_bias_.weight.defined()) tools_.kernels.add_rows(some_logits, output_bias_.gradient);
      tools_.products.input_gradient(some_logits, output_.weight, some);
    }
    pass.loss->add_(losses.sum(at::kDouble));
  }

  void backward_input(Part, const Pass& pass) override {
    const at::Tensor gradient = pass["head.output.input"];  // since the forward
    at::Tensor input = *pass.below;
    if (!model_.is_bert()) return through(norm_weight_, norm_bias_, "head.norm", gradient, pass, input);
    at::Tensor d_transform = pass["head.transform.gradient"], none;
    through(transform_norm_, transform_norm_bias_, "head.transform_norm", gradient, pass, d_transform);
    tools_.kernels.activation_backward(model_.activation, d_transform, pass["head.transform.output"], {},
                                       d_transform, none);
    if (model_.norm_place == NormPlace::post)
      return tools_.products.input_gradient(d_transform, transform_.weight, input);
    at::Tensor d_input = pass["input.gradient"];
    tools_.products.input_gradient(d_transform, transform_.weight, d_input);
    through(norm_weight_, norm_bias_, "head.norm", d_input, pass, input);
  }

  void backward_weight(Part, const Pass& pass) override {
    if (!model_.is_bert()) return;
    tools_.products.weight_gradient(pass["head.transform.gradient"], transform_input(pass),
                                    transform_.gradient);
    tools_.kernels.add_rows(pass["head.transform.gradient"], transform_bias_.gradient);
  }

  std::vector<at::Tensor> first_written() const override { return {output_.gradient}; }

 private:
  struct Weight {
    at::Tensor weight, gradient;
  };

  // From the stream to the projection's input.
  void prepare(const Pass& pass, at::Tensor& input) {
    if (!model_.is_bert()) return normalize(norm_weight_, norm_bias_, "head.norm", pass, input);
    if (model_.norm_place == NormPlace::pre) {
      at::Tensor normed = pass["head.norm.output"];
      normalize(norm_weight_, norm_bias_, "head.norm", pass, normed);
    }
    at::Tensor transformed = pass["head.transform.output"], activated = pass["head.transform_norm.input"];
    tools_.products.forward(transform_input(pass), transform_.weight, transform_bias_.weight, transformed);
    tools_.kernels.activation(model_.activation, transformed, {}, activated);
    normalize(transform_norm_, transform_norm_bias_, "head.transform_norm", pass, input);
  }
  at::Tensor transform_input(const Pass& pass) const {
    return pass[model_.norm_place == NormPlace::pre ? "head.norm.output" : "head.input"];
  }
  void normalize(const Weight& weight, const Weight& bias, const std::string& name, const Pass& pass,
                 at::Tensor& y) const {
    at::Tensor statistics = pass[name + ".statistics"];
    tools_.kernels.norm(norm_options(), pass[name + ".input"], weight.weight, bias.weight, y, statistics);
  }
  void through(Weight& weight, Weight& bias, const std::string& name, const at::Tensor& dy, const Pass& pass,
               at::Tensor& dx) const {
    tools_.kernels.norm_backward(norm_options(), dy, pass[name + ".input"], weight.weight,
                                 pass[name + ".statistics"], {}, dx, weight.gradient, bias.gradient);
  }
  NormOptions norm_options() const { return {model_.norm, model_.norm_eps}; }

  const Tools& tools_;
  const ModelSpec& model_;
  Weight norm_weight_, norm_bias_, transform_, transform_bias_, transform_norm_, transform_norm_bias_,
      output_, output_bias_;
};

}  // namespace

std::unique_ptr<Block> make_head_block(const Tools& tools, const Parameters& parameters) {
  return std::make_unique<HeadBlock>(tools, parameters);
}

}  // namespace optimus
