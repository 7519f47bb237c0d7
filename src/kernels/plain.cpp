// PlainKernels: each kernel as ATen operations, on any device. They are the reference in tests, so they are
// written for readability, not for speed.
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/threshold_backward.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include "kernels/kernels.h"

namespace optimus {
namespace {

at::Tensor wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? tensor : tensor.to(at::kFloat);
}

at::Tensor activate(Activation kind, const at::Tensor& x) {
  switch (kind) {
    case Activation::gelu:
      return at::gelu(x);
    case Activation::gelu_tanh:
      return at::gelu(x, "tanh");
    case Activation::silu:
      return at::silu(x);
    case Activation::relu:
      return at::relu(x);
  }
  return {};
}

at::Tensor activate_backward(Activation kind, const at::Tensor& dy, const at::Tensor& x) {
  switch (kind) {
    case Activation::gelu:
      return at::gelu_backward(dy, x);
    case Activation::gelu_tanh:
      return at::gelu_backward(dy, x, "tanh");
    case Activation::silu:
      return at::silu_backward(dy, x);
    case Activation::relu:
      return at::threshold_backward(dy, x, 0);
  }
  return {};
}

// Returns the dropout factors of a site, [rows, width], which are 0 or 1 / (1 - rate). The random numbers are
// drawn on the host, row by row.
at::Tensor dropout_factors(const DropoutSite& site, const at::Tensor& like) {
  const std::int64_t num_rows = like.size(0), width = like.size(1);
  at::Tensor uniform = at::empty({num_rows, width}, at::kDouble);
  for (std::int64_t row = 0; row < num_rows; ++row) {
    const std::int64_t at = site.first_row + row, position = site.positions(at % site.sequence_length);
    const auto sample =
        static_cast<std::uint64_t>(site.samples.at(static_cast<std::size_t>(at / site.sequence_length)));
    fill_uniform(site.key.derive(sample), {position + 1, width}, {{position, position + 1}, {0, width}},
                 std::span(uniform.data_ptr<double>() + row * width, static_cast<std::size_t>(width)));
  }
  return (uniform.ge(site.rate).to(at::kDouble) / (1 - site.rate)).to(like.device(), like.scalar_type());
}

// table[ids[row]] += values[row]. ATen has two operations for this; uses the one that adds in a fixed order
// on the device.
void add_to_rows(at::Tensor& table, const at::Tensor& ids, const at::Tensor& values) {
  if (table.is_cuda())
    table.index_put_({ids.to(at::kLong)}, values, /*accumulate=*/true);
  else
    table.index_add_(0, ids, values);
}

class PlainKernels final : public Kernels {
 public:
  void norm(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
            at::Tensor& y, at::Tensor& statistics) const override {
    const bool is_centered = options.kind == NormKind::layer_norm;
    const at::Tensor mean = wide(x).mean(-1, true);
    const at::Tensor centered = is_centered ? wide(x) - mean : wide(x);
    const at::Tensor rstd = (centered.square().mean(-1, true) + options.eps).rsqrt();
    statistics.copy_(is_centered ? at::cat({mean, rstd}, -1) : rstd);
    const at::Tensor scaled = centered * rstd * wide(weight);
    y.copy_(bias.defined() ? scaled + wide(bias) : scaled);
  }

  void norm_backward(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                     const at::Tensor& weight, const at::Tensor& statistics, const at::Tensor& residual,
                     at::Tensor& dx, at::Tensor& weight_gradient, at::Tensor& bias_gradient) const override {
    const bool is_centered = options.kind == NormKind::layer_norm;
    const at::Tensor rstd = statistics.narrow(-1, is_centered ? 1 : 0, 1);
    const at::Tensor normed = (is_centered ? wide(x) - statistics.narrow(-1, 0, 1) : wide(x)) * rstd;
    const at::Tensor upstream = wide(dy) * wide(weight);
    at::Tensor inner = upstream - normed * (upstream * normed).mean(-1, true);
    if (is_centered) inner = inner - upstream.mean(-1, true);
    const at::Tensor gradient = residual.defined() ? wide(residual) + inner * rstd : inner * rstd;
    const std::int64_t width = x.size(-1);
    weight_gradient.add_((wide(dy) * normed).reshape({-1, width}).sum(0));
    if (is_centered) bias_gradient.add_(wide(dy).reshape({-1, width}).sum(0));
    dx.copy_(gradient);  // last, because dx may alias dy
  }

  void activation(Activation kind, const at::Tensor& x, const at::Tensor& gate,
                  at::Tensor& y) const override {
    y.copy_(gate.defined() ? activate(kind, wide(gate)) * wide(x) : activate(kind, wide(x)));
  }

  void activation_backward(Activation kind, const at::Tensor& dy, const at::Tensor& x, const at::Tensor& gate,
                           at::Tensor& dx, at::Tensor& d_gate) const override {
    if (!gate.defined()) {
      dx.copy_(activate_backward(kind, wide(dy), wide(x)));
      return;
    }
    d_gate.copy_(activate_backward(kind, wide(dy) * wide(x), wide(gate)));
    dx.copy_(wide(dy) * activate(kind, wide(gate)));
  }

  void rope(at::Tensor& x, const at::Tensor& cosine, const at::Tensor& sine, const at::Tensor& positions,
            bool is_backward) const override {
    const std::int64_t half = x.size(2) / 2;
    const at::Tensor cos = cosine.index_select(0, positions).unsqueeze(1);  // [rows, 1, head_dim / 2]
    const at::Tensor signed_sine = sine.index_select(0, positions).unsqueeze(1) * (is_backward ? -1 : 1);
    const at::Tensor a = wide(x.narrow(2, 0, half)), b = wide(x.narrow(2, half, half));
    x.copy_(at::cat({a * cos - b * signed_sine, b * cos + a * signed_sine}, 2));
  }

  void embedding(const at::Tensor& ids, const at::Tensor& position_ids, const at::Tensor& tokens,
                 const at::Tensor& positions, const at::Tensor& types, at::Tensor& out) const override {
    at::Tensor sum = wide(tokens.index_select(0, ids.clamp_min(0))) * ids.ge(0).unsqueeze(1);
    if (positions.defined()) sum = sum + wide(positions.index_select(0, position_ids));
    if (types.defined()) sum = sum + wide(types.select(0, 0));
    out.copy_(sum);
  }

  void embedding_backward(const at::Tensor& dout, const at::Tensor& ids, const at::Tensor& position_ids,
                          at::Tensor& tokens, at::Tensor& positions, at::Tensor& types) const override {
    if (tokens.defined()) add_to_rows(tokens, ids.clamp_min(0), wide(dout) * ids.ge(0).unsqueeze(1));
    if (positions.defined()) add_to_rows(positions, position_ids, wide(dout));
    if (types.defined()) types.select(0, 0).add_(wide(dout).sum(0));
  }

  void cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses,
                     double gradient_scale) const override {
    const at::Tensor is_counted = targets.ge(0);
    const at::Tensor target_ids = targets.clamp_min(0).unsqueeze(1);
    const at::Tensor log_softmax = wide(logits).log_softmax(1);
    const at::Tensor negative = -log_softmax.gather(1, target_ids).squeeze(1);
    losses.copy_(at::where(is_counted, negative, at::zeros_like(negative)));
    if (gradient_scale == 0) return;
    at::Tensor gradient = log_softmax.exp();
    gradient.scatter_add_(1, target_ids, (negative * 0 - 1).unsqueeze(1));
    gradient = gradient * gradient_scale;
    logits.copy_(at::where(is_counted.unsqueeze(1), gradient, at::zeros_like(gradient)));
  }

  void loss_statistics(const at::Tensor& logits, const at::Tensor& targets,
                       at::Tensor& statistics) const override {
    const at::Tensor x = wide(logits), max_logit = x.amax(1, true), is_local_target = targets.ge(0);
    statistics.select(1, 0).copy_(max_logit.squeeze(1));
    statistics.select(1, 1).copy_((x - max_logit).exp().sum(1));
    statistics.select(1, 2).copy_(x.gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1) *
                                  is_local_target);
  }

  void loss_gradient(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& logsumexp,
                     double gradient_scale) const override {
    at::Tensor gradient = (wide(logits) - logsumexp.view({-1, 1})).exp();
    const at::Tensor is_local_target = targets.ge(0).to(gradient.scalar_type()).unsqueeze(1);
    gradient.scatter_add_(1, targets.clamp_min(0).unsqueeze(1), -is_local_target);
    logits.copy_(gradient * targets.ne(-1).unsqueeze(1) * gradient_scale);
  }

  void add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
           const DropoutSite& dropout, at::Tensor& y) const override {
    at::Tensor sum = bias.defined() ? wide(x) + wide(bias) : wide(x);
    if (dropout.rate != 0) sum = sum * dropout_factors(dropout, sum);
    y.copy_(residual.defined() ? sum + wide(residual) : sum);
  }

  void dropout_backward(const at::Tensor& dy, const DropoutSite& dropout, at::Tensor& dx) const override {
    add(dy, {}, {}, dropout, dx);
  }

  void add_rows(const at::Tensor& x, at::Tensor& sum) const override { sum.add_(wide(x).sum(0)); }

  void add_square_sum(const at::Tensor& flat, at::Tensor& sum) const override {
    sum.add_(at::linalg_vector_norm(flat, 2, std::nullopt, false, at::kDouble).square());
  }

  void pass_gate(const GateOptions& options, at::Tensor& step_scalars) const override {
    const auto at = [&](StepScalar scalar) { return step_scalars.select(0, static_cast<int>(scalar)); };
    const at::Tensor mean_divisor = at(StepScalar::loss_scale) * at(StepScalar::num_targets);
    const at::Tensor norm = at(StepScalar::square_sum).sqrt() / mean_divisor;
    const at::Tensor is_finite = norm.isfinite().logical_and(at(StepScalar::loss_sum).isfinite());
    at(StepScalar::grad_norm).copy_(norm);
    at(StepScalar::is_finite).copy_(is_finite);
    if (!is_finite.item<bool>()) return;
    at(StepScalar::num_updates).add_(1);
    const auto step = at(StepScalar::num_updates).item<double>();
    const at::Tensor clipping = options.clip > 0 ? (options.clip / (norm + 1e-6)).clamp_max(1) : norm * 0 + 1;
    at(StepScalar::factor).copy_(clipping / mean_divisor);
    at(StepScalar::rate).copy_(at(StepScalar::learning_rate) / (1 - std::pow(options.beta1, step)));
    at(StepScalar::inverse_root).fill_(1 / std::sqrt(1 - std::pow(options.beta2, step)));
  }

  void adamw(const AdamOptions& options, const at::Tensor& step_scalars, const at::Tensor& gradient,
             at::Tensor& master, at::Tensor& first_moment, at::Tensor& second_moment,
             at::Tensor& weight) const override {
    const auto at = [&](StepScalar scalar) {
      return step_scalars.select(0, static_cast<int>(scalar)).item<double>();
    };
    if (at(StepScalar::is_finite) == 0) return;
    const at::Tensor scaled = gradient * at(StepScalar::factor);
    first_moment.mul_(options.beta1).add_(scaled, 1 - options.beta1);
    second_moment.mul_(options.beta2).addcmul_(scaled, scaled, 1 - options.beta2);
    const at::Tensor divisor = second_moment.sqrt() * at(StepScalar::inverse_root) + options.epsilon;
    master.mul_(1 - at(StepScalar::learning_rate) * options.weight_decay);
    master.addcdiv_(first_moment, divisor, -at(StepScalar::rate));
    weight.copy_(master);
  }

  void convert(const at::Tensor& from, at::Tensor& to) const override { to.copy_(from); }
};

}  // namespace

std::unique_ptr<Kernels> make_plain_kernels() { return std::make_unique<PlainKernels>(); }

}  // namespace optimus
