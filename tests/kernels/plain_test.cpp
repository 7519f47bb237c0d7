// The gradients of PlainKernels are derivatives of their forward functions: central differences in fp64 in
// random directions. Their error is about step^2 + 1e-16 / step, a few 1e-10 of the values here.
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <functional>

#include "kernels/kernels.h"
#include "tensors.h"

namespace optimus {
namespace {

using namespace test;

class PlainTest : public testing::Test {
 protected:
  const std::unique_ptr<Kernels> kernels_ = make_plain_kernels();
  at::Tensor none_;

  static at::Tensor random(const std::string& name, std::vector<std::int64_t> sizes) {
    return random_tensor(name, std::move(sizes), at::kDouble);
  }
  // For each input, value(inputs) must change by gradient . direction in a random direction.
  static void expect_gradients(std::vector<at::Tensor> inputs, const std::vector<at::Tensor>& gradients,
                               const std::function<double(const std::vector<at::Tensor>&)>& value) {
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const at::Tensor at_point = inputs[i], direction = random("direction", at_point.sizes().vec());
      const double step = 1e-5;
      inputs[i] = at_point + step * direction;
      const double above = value(inputs);
      inputs[i] = at_point - step * direction;
      const double slope = (above - value(inputs)) / (2 * step);
      inputs[i] = at_point;
      const double expected = (gradients[i] * direction).sum().item<double>();
      EXPECT_NEAR(slope, expected, 1e-7 * (1 + std::abs(expected))) << "input " << i;
    }
  }
};

TEST_F(PlainTest, NormGradients) {
  for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
    const bool is_layer = kind == NormKind::layer_norm;
    const NormOptions options{.kind = kind, .eps = 1e-3};
    const at::Tensor x = random("x", {5, 11}), weight = random("w", {11}), bias = random("b", {11}),
                     dy = random("dy", {5, 11});
    at::Tensor y = random("y", {5, 11}), statistics = random("s", {5, is_layer ? 2 : 1}),
               dx = random("dx", {5, 11});
    at::Tensor dw = at::zeros({11}, at::kDouble), db = at::zeros({11}, at::kDouble);
    kernels_->norm(options, x, weight, is_layer ? bias : none_, y, statistics);
    kernels_->norm_backward(options, dy, x, weight, statistics, none_, dx, dw, db);
    expect_gradients({x, weight, bias}, {dx, dw, db}, [&](const std::vector<at::Tensor>& in) {
      kernels_->norm(options, in[0], in[1], is_layer ? in[2] : none_, y, statistics);
      return (y * dy).sum().item<double>();
    });
  }
}

TEST_F(PlainTest, ActivationGradients) {
  for (const Activation kind :
       {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu}) {
    const at::Tensor x = random("x", {4, 9}), gate = random("g", {4, 9}), dy = random("dy", {4, 9});
    at::Tensor y = random("y", {4, 9}), dx = random("dx", {4, 9}), d_gate = random("dg", {4, 9});
    kernels_->activation_backward(kind, dy, x, none_, dx, none_);
    expect_gradients({x}, {dx}, [&](const std::vector<at::Tensor>& in) {
      kernels_->activation(kind, in[0], none_, y);
      return (y * dy).sum().item<double>();
    });
    kernels_->activation_backward(kind, dy, x, gate, dx, d_gate);
    expect_gradients({x, gate}, {dx, d_gate}, [&](const std::vector<at::Tensor>& in) {
      kernels_->activation(kind, in[0], in[1], y);
      return (y * dy).sum().item<double>();
    });
  }
}

TEST_F(PlainTest, CrossEntropyGradient) {
  const at::Tensor logits = random("l", {6, 13});
  at::Tensor targets = (random("t", {6}) * 1000).to(at::kLong).remainder(13), losses = random("x", {6}),
             gradient = logits.clone();
  targets[2] = -1;
  kernels_->cross_entropy(gradient, targets, losses, 1);
  expect_gradients({logits}, {gradient}, [&](const std::vector<at::Tensor>& in) {
    at::Tensor unchanged = in[0];
    kernels_->cross_entropy(unchanged, targets, losses, 0);
    return losses.sum().item<double>();
  });
}

TEST_F(PlainTest, EmbeddingGradients) {
  const at::Tensor tokens = random("t", {7, 5}), positions = random("p", {4, 5}), types = random("y", {2, 5}),
                   dout = random("d", {9, 5});
  const at::Tensor ids = (random("i", {9}) * 1000).to(at::kLong).remainder(7);
  const at::Tensor places = (random("j", {9}) * 1000).to(at::kLong).remainder(4).to(at::kInt);
  at::Tensor dt = at::zeros({7, 5}, at::kDouble), dp = at::zeros({4, 5}, at::kDouble),
             dy = at::zeros({2, 5}, at::kDouble);
  at::Tensor out = random("o", {9, 5});
  kernels_->embedding_backward(dout, ids, places, dt, dp, dy);
  expect_gradients({tokens, positions, types}, {dt, dp, dy}, [&](const std::vector<at::Tensor>& in) {
    kernels_->embedding(ids, places, in[0], in[1], in[2], out);
    return (out * dout).sum().item<double>();
  });
}

TEST_F(PlainTest, RopePreservesLengthAndDependsOnDistance) {
  const at::Tensor angle = at::ones_like(random("a", {30, 4})).cumsum(0) * random("f", {1, 4});
  const at::Tensor cosine = angle.cos(), sine = angle.sin();
  const auto product = [&](std::int64_t a, std::int64_t b) {
    at::Tensor q = random("q", {1, 1, 8}), k = random("k", {1, 1, 8});
    kernels_->rope(q, cosine, sine, at::zeros({1}, at::kInt) + a, false);
    kernels_->rope(k, cosine, sine, at::zeros({1}, at::kInt) + b, false);
    EXPECT_NEAR(q.norm().item<double>(), random("q", {8}).norm().item<double>(), 1e-12);
    return (q * k).sum().item<double>();
  };
  EXPECT_NEAR(product(3, 1), product(29, 27), 1e-12);
  EXPECT_GT(std::abs(product(3, 1) - product(3, 2)), 1e-3);
}

}  // namespace
}  // namespace optimus
