// Compares every kernel of HostKernels, in each element type, with PlainKernels in fp64 on the same numbers.
#include <ATen/Parallel.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <array>
#include <cmath>
#include <limits>

#include "kernels/kernels.h"
#include "tensors.h"

namespace optimus {
namespace {

using namespace test;

class HostTest : public testing::TestWithParam<at::ScalarType> {
 protected:
  const at::ScalarType type_ = GetParam();
  const std::unique_ptr<Kernels> host_ = make_host_kernels(), plain_ = make_plain_kernels();
  const double tolerance_ = tolerance(GetParam()), wide_tolerance_ = wide_tolerance(GetParam());

  at::Tensor random(const std::string& name, std::vector<std::int64_t> sizes) const {
    return random_tensor(name, std::move(sizes), type_);
  }
  at::Tensor rows(const std::string& name, std::int64_t num_rows, std::int64_t width) const {
    return random_rows(name, num_rows, width, type_);
  }
  at::Tensor wide(const std::string& name, std::vector<std::int64_t> sizes) const {
    return random_tensor(name, std::move(sizes), wide_type(type_));
  }
};

INSTANTIATE_TEST_SUITE_P(Types, HostTest, testing::ValuesIn(kTypes),
                         [](const auto& type) { return std::string(c10::toString(type.param)); });

// The result as a number. The initial value of the accumulator is subtracted.
double square_sum(const Kernels& kernels, const at::Tensor& flat) {
  at::Tensor sum = at::full({1}, 0.5, at::kDouble);
  kernels.add_square_sum(flat, sum);
  return sum.item<double>() - 0.5;
}

// Rows x width, with every remainder of vectors and lanes, and without rows.
const std::vector<std::pair<std::int64_t, std::int64_t>> kSizes = {{0, 8},   {1, 1},   {3, 7},     {5, 16},
                                                                   {17, 33}, {64, 96}, {130, 257}, {9, 1027}};

TEST_P(HostTest, NormForwardAndBackward) {
  for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm})
    for (const auto& [num_rows, width] : kSizes) {
      if (width == 1) continue;  // a single normed number is only a sign: this would compare only eps
      SCOPED_TRACE(std::to_string(num_rows) + " x " + std::to_string(width));
      const NormOptions options{.kind = kind, .eps = 1e-5};
      const bool is_layer = kind == NormKind::layer_norm;
      const at::Tensor x = rows("x", num_rows, width), weight = random("w", {width}),
                       dy = rows("dy", num_rows, width);
      const at::Tensor bias = is_layer ? random("b", {width}) : at::Tensor();
      const at::Tensor residual = rows("r", num_rows, width);
      at::Tensor y = strided_like(x), statistics = wide("s", {num_rows, is_layer ? 2 : 1});
      at::Tensor plain_y = in_double(x), plain_statistics = in_double(statistics);
      host_->norm(options, x, weight, bias, y, statistics);
      plain_->norm(options, in_double(x), in_double(weight), in_double(bias), plain_y, plain_statistics);
      EXPECT_CLOSE(y, plain_y, tolerance_);
      EXPECT_CLOSE(statistics, plain_statistics, wide_tolerance_);

      for (const at::Tensor& added : {residual, at::Tensor()}) {
        at::Tensor dx = strided_like(x), dw = wide("dw", {width}), db = wide("db", {width});
        at::Tensor plain_dx = in_double(x), plain_dw = in_double(dw), plain_db = in_double(db);
        host_->norm_backward(options, dy, x, weight, statistics, added, dx, dw, db);
        plain_->norm_backward(options, in_double(dy), in_double(x), in_double(weight), in_double(statistics),
                              in_double(added), plain_dx, plain_dw, plain_db);
        EXPECT_CLOSE(dx, plain_dx, tolerance_);
        EXPECT_CLOSE(dw, plain_dw, wide_tolerance_);
        EXPECT_CLOSE(db, plain_db, wide_tolerance_);
        at::Tensor in_place = dy.clone(), unused = dw.clone(), unused_too = db.clone();
        host_->norm_backward(options, in_place, x, weight, statistics, added, in_place, unused, unused_too);
        EXPECT_TRUE(at::equal(in_place, dx));
        StreamSums sums{added.defined() ? wide("rs", {width}) : added, wide("os", {width})};
        at::Tensor residual_sum = sums.residual.defined() ? sums.residual.clone() : added,
                   output_sum = sums.output.clone(),
                   other = added.defined() ? added.clone() : strided_like(x);
        if (added.defined()) host_->add_rows(added, residual_sum);
        host_->add_rows(dx, output_sum);
        host_->norm_backward_with_sums(options, dy, x, weight, statistics, added.defined() ? other : added,
                                       other, unused, unused_too, sums);
        EXPECT_TRUE(at::equal(other, dx) && at::equal(sums.output, output_sum));
        if (added.defined()) {
          EXPECT_TRUE(at::equal(sums.residual, residual_sum));
        }
      }
    }
}

TEST_P(HostTest, NormOfHeads) {
  const NormOptions options{.kind = NormKind::rms_norm, .eps = 1e-6};
  const at::Tensor buffer = random("buffer", {11, 200}), weight = random("w", {24});
  const at::Tensor x = buffer.narrow(1, 8, 5 * 24).unflatten(1, {5, 24});
  at::Tensor y = random("y", {11, 5, 24}), statistics = wide("s", {11, 5, 1});
  at::Tensor plain_y = in_double(y), plain_statistics = in_double(statistics), none;
  host_->norm(options, x, weight, none, y, statistics);
  plain_->norm(options, in_double(x), in_double(weight), none, plain_y, plain_statistics);
  EXPECT_CLOSE(y, plain_y, tolerance_);
  EXPECT_CLOSE(statistics, plain_statistics, wide_tolerance_);
  const at::Tensor dy = random("dy", {11, 5, 24});
  at::Tensor dx = random("dx", {11, 5, 24}), dw = wide("dw", {24}), plain_dx = in_double(dx),
             plain_dw = in_double(dw);
  host_->norm_backward(options, dy, x, weight, statistics, none, dx, dw, none);
  plain_->norm_backward(options, in_double(dy), in_double(x), in_double(weight), in_double(statistics), none,
                        plain_dx, plain_dw, none);
  EXPECT_CLOSE(dx, plain_dx, tolerance_);
  EXPECT_CLOSE(dw, plain_dw, wide_tolerance_);
}

TEST_P(HostTest, ActivationsPlainAndGated) {
  for (const Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu})
    for (const auto& [num_rows, width] : kSizes) {
      SCOPED_TRACE(static_cast<int>(kind));
      const at::Tensor x = rows("x", num_rows, width) * 3, dy = rows("dy", num_rows, width);
      for (const at::Tensor& gate : {at::Tensor(), rows("gate", num_rows, width) * 3}) {
        at::Tensor y = strided_like(x), dx = strided_like(x), d_gate = strided_like(x).clone();
        at::Tensor plain_y = in_double(x), plain_dx = in_double(x), plain_d_gate = in_double(x);
        host_->activation(kind, x, gate, y);
        plain_->activation(kind, in_double(x), in_double(gate), plain_y);
        EXPECT_CLOSE(y, plain_y, tolerance_);
        host_->activation_backward(kind, dy, x, gate, dx, d_gate);
        plain_->activation_backward(kind, in_double(dy), in_double(x), in_double(gate), plain_dx,
                                    plain_d_gate);
        EXPECT_CLOSE(dx, plain_dx, tolerance_);
        if (gate.defined()) {
          EXPECT_CLOSE(d_gate, plain_d_gate, tolerance_);
        }
        at::Tensor in_place = dy.clone(), d_gate_too = d_gate.clone();
        host_->activation_backward(kind, in_place, x, gate, in_place, d_gate_too);
        EXPECT_TRUE(at::equal(in_place, dx) && at::equal(d_gate, d_gate_too));
      }
    }
}

TEST_P(HostTest, ActivationsOfExtremeNumbers) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const Activation kind : {Activation::gelu, Activation::gelu_tanh, Activation::silu}) {
    at::Tensor x = at::full({1, 6}, 0.0, at::kDouble);
    const double values[] = {-1e4, -100, -20, 20, 100, 1e4};
    for (int i = 0; i < 6; ++i) x[0][i] = values[i];
    x = x.to(type_);
    at::Tensor y = x.clone(), dx = x.clone(), none;
    host_->activation(kind, x, none, y);
    host_->activation_backward(kind, at::full({1, 6}, 1.0, x.options()), x, none, dx, none);
    for (int i = 0; i < 6; ++i) {
      EXPECT_NEAR(y[0][i].item<double>(), i < 3 ? 0 : x[0][i].item<double>(), 1e-6) << i;
      EXPECT_NEAR(dx[0][i].item<double>(), i < 3 ? 0 : 1, 1e-6) << i;
    }
    x.fill_(std::numeric_limits<double>::quiet_NaN());
    host_->activation(kind, x, none, y);
    EXPECT_TRUE(y.isnan().all().item<bool>());
    x.fill_(infinity);
    host_->activation(kind, x, none, y);
    EXPECT_TRUE(y.isinf().all().item<bool>());
  }
}

TEST_P(HostTest, RopeAndItsInverse) {
  for (const std::int64_t half : {1, 4, 9, 32}) {
    const std::int64_t num_rows = 13, heads = 3;
    const at::Tensor buffer = random("buffer", {num_rows, heads * 2 * half + 7});
    at::Tensor x = buffer.clone().narrow(1, 5, heads * 2 * half).unflatten(1, {heads, 2 * half});
    const at::Tensor angle = wide("angle", {20, half}), cosine = angle.cos(), sine = angle.sin();
    const at::Tensor positions =
        (random_tensor("p", {num_rows}, at::kDouble) * 100).to(at::kInt).remainder(20).to(at::kInt);
    at::Tensor plain_x = in_double(x);
    const at::Tensor before = in_double(x);
    host_->rope(x, cosine, sine, positions, false);
    plain_->rope(plain_x, in_double(cosine), in_double(sine), positions, false);
    EXPECT_CLOSE(x, plain_x, tolerance_);
    host_->rope(x, cosine, sine, positions, true);
    EXPECT_CLOSE(x, before, 2 * tolerance_);  // rounded twice
  }
}

TEST_P(HostTest, EmbeddingAndItsGradient) {
  const std::int64_t num_rows = 50;
  for (const std::int64_t width : {1, 37, 96}) {
    const at::Tensor tokens = random("t", {19, width}), positions = random("p", {8, width}),
                     types = random("y", {2, width});
    const at::Tensor ids = (random_tensor("ids", {num_rows}, at::kDouble) * 1000).to(at::kLong).remainder(19);
    const at::Tensor places =
        (random_tensor("pl", {num_rows}, at::kDouble) * 1000).to(at::kLong).remainder(8).to(at::kInt);
    for (const bool is_full : {true, false}) {
      const at::Tensor none;
      at::Tensor out = rows("o", num_rows, width), plain_out = in_double(out);
      host_->embedding(ids, places, tokens, is_full ? positions : none, is_full ? types : none, out);
      plain_->embedding(ids, places, in_double(tokens), is_full ? in_double(positions) : none,
                        is_full ? in_double(types) : none, plain_out);
      EXPECT_CLOSE(out, plain_out, tolerance_);
      at::Tensor dt = wide("dt", {19, width}), dp = is_full ? wide("dp", {8, width}) : none;
      at::Tensor dy = is_full ? wide("dy", {2, width}) : none;
      at::Tensor plain_dt = in_double(dt), plain_dp = in_double(dp), plain_dy = in_double(dy);
      host_->embedding_backward(out, ids, places, dt, dp, dy);
      plain_->embedding_backward(in_double(out), ids, places, plain_dt, plain_dp, plain_dy);
      EXPECT_CLOSE(dt, plain_dt, wide_tolerance_);
      if (!is_full) continue;
      EXPECT_CLOSE(dp, plain_dp, wide_tolerance_);
      EXPECT_CLOSE(dy, plain_dy, wide_tolerance_);
    }
  }
}

TEST_P(HostTest, CrossEntropyAndItsGradient) {
  for (const std::int64_t vocab : {1, 2, 31, 1024, 1025, 5003}) {
    const std::int64_t num_rows = 21;
    const at::Tensor logits = rows("l", num_rows, vocab) * 4;
    at::Tensor targets =
        (random_tensor("t", {num_rows}, at::kDouble) * 100000).to(at::kLong).remainder(vocab);
    targets[3] = -1, targets[20] = -1;
    at::Tensor host_logits = strided_like(logits).copy_(logits), plain_logits = in_double(logits);
    at::Tensor losses = wide("x", {num_rows}), plain_losses = in_double(losses), only_losses = losses.clone();
    host_->cross_entropy(host_logits, targets, only_losses, 0);
    EXPECT_TRUE(at::equal(host_logits, logits));
    host_->cross_entropy(host_logits, targets, losses, 0.37);
    plain_->cross_entropy(plain_logits, targets, plain_losses, 0.37);
    EXPECT_TRUE(at::equal(losses, only_losses));
    EXPECT_CLOSE(losses, plain_losses, wide_tolerance_);
    EXPECT_CLOSE(host_logits, plain_logits, tolerance_);
    EXPECT_EQ(host_logits[3].abs().max().item<double>(), 0);
    EXPECT_EQ(losses[20].item<double>(), 0);
  }
}

TEST_P(HostTest, CrossEntropyOfExtremeLogits) {
  at::Tensor logits = at::full({3, 40}, -1e4, at::kDouble).to(type_), losses = wide("x", {3});
  logits[0][5] = 1e4;                                         // certain and correct
  logits[1].fill_(-std::numeric_limits<double>::infinity());  // all but one excluded
  logits[1][7] = 0;
  logits[2][39] = std::numeric_limits<double>::quiet_NaN();
  at::Tensor targets = at::full({3}, 5, at::kLong);
  targets[1] = 7;
  host_->cross_entropy(logits, targets, losses, 1);
  EXPECT_NEAR(losses[0].item<double>(), 0, 1e-12);
  EXPECT_NEAR(losses[1].item<double>(), 0, 1e-12);
  EXPECT_EQ(logits.narrow(0, 0, 2).abs().max().item<double>(), 0);
  EXPECT_TRUE(std::isnan(losses[2].item<double>()));
}

DropoutSite site(double rate) {
  return {.rate = rate, .key = RandomKey(3).derive("site"), .samples = {40, 7, 1000}, .sequence_length = 6};
}

TEST_P(HostTest, AddWithBiasResidualAndDropout) {
  for (const std::int64_t width : {1, 21, 300})
    for (const double rate : {0.0, 0.1, 0.75})
      for (const bool has_bias : {true, false})
        for (const bool has_residual : {true, false}) {
          const at::Tensor none, x = rows("x", 18, width);
          const at::Tensor bias = has_bias ? random("b", {width}) : none,
                           residual = has_residual ? rows("r", 18, width) : none;
          at::Tensor y = strided_like(x), plain_y = in_double(x);
          host_->add(x, bias, residual, site(rate), y);
          plain_->add(in_double(x), in_double(bias), in_double(residual), site(rate), plain_y);
          EXPECT_CLOSE(y, plain_y, tolerance_);
          at::Tensor in_place = has_residual ? residual.clone() : x.clone();
          host_->add(has_residual ? x : in_place, bias, has_residual ? in_place : none, site(rate), in_place);
          EXPECT_TRUE(at::equal(in_place, y));
          at::Tensor dx = strided_like(x), plain_dx = in_double(x);
          host_->dropout_backward(x, site(rate), dx);
          plain_->dropout_backward(in_double(x), site(rate), plain_dx);
          EXPECT_CLOSE(dx, plain_dx, tolerance_);
        }
}

TEST_P(HostTest, DropoutDoesNotDependOnMicroBatches) {
  const at::Tensor x = random("x", {18, 50});
  at::Tensor whole = x.clone(), none;
  host_->add(x, none, none, site(0.5), whole);
  for (std::int64_t sequence = 0; sequence < 3; ++sequence) {
    DropoutSite one = site(0.5);
    one.samples = {one.samples[static_cast<std::size_t>(sequence)]};
    at::Tensor part = at::zeros({6, 50}, x.options());
    host_->add(x.narrow(0, 6 * sequence, 6), none, none, one, part);
    EXPECT_TRUE(at::equal(part, whole.narrow(0, 6 * sequence, 6)));
  }
  const double kept = whole.ne(0).to(at::kDouble).mean().item<double>();
  EXPECT_NEAR(kept, 0.5, 5 * 0.5 / 30);  // five standard deviations of the mean of 900 coin flips
}

TEST_P(HostTest, SumsOverRows) {
  for (const auto& [num_rows, width] : kSizes) {
    const at::Tensor x = rows("x", num_rows, width);
    at::Tensor sum = wide("s", {width}), plain_sum = in_double(sum);
    host_->add_rows(x, sum);
    plain_->add_rows(in_double(x), plain_sum);
    EXPECT_CLOSE(sum, plain_sum, wide_tolerance_);
  }
}

TEST_P(HostTest, SquareSum) {
  for (const std::int64_t size : {0, 1, 100, 70001, 300000}) {
    at::Tensor flat = wide("flat", {size});
    const double expected = square_sum(*plain_, in_double(flat));
    EXPECT_NEAR(square_sum(*host_, flat), expected, 1e-12 * expected);
    if (size == 0) continue;
    flat[size - 1] = 1e30;
    EXPECT_NEAR(square_sum(*host_, flat) / 1e60, 1, 1e-6);  // exceeds the range of fp32
    flat[size - 1] = std::numeric_limits<double>::infinity();
    EXPECT_TRUE(std::isinf(square_sum(*host_, flat)));
    flat[0] = std::numeric_limits<double>::quiet_NaN();
    EXPECT_TRUE(std::isnan(square_sum(*host_, flat)));
  }
}

TEST_P(HostTest, AdamwMatchesReference) {
  const std::int64_t size = 20011;
  at::Tensor master = wide("m", {size}), first = at::zeros({size}, master.options()), second = first.clone();
  at::Tensor weight = random("w", {size});
  at::Tensor plain_master = in_double(master), plain_first = in_double(first),
             plain_second = in_double(second);
  at::Tensor plain_weight = in_double(weight);
  for (int step = 1; step <= 5; ++step) {
    const AdamOptions options{.weight_decay = 0.1};
    const at::Tensor numbers = step_scalars_after_gate(at::kCPU, 1e-2, step, 0.25);
    const at::Tensor gradient = wide("g" + std::to_string(step), {size});
    host_->adamw(options, numbers, gradient, master, first, second, weight);
    plain_->adamw(options, numbers, in_double(gradient), plain_master, plain_first, plain_second,
                  plain_weight);
  }
  EXPECT_CLOSE(master, plain_master, wide_tolerance_);
  EXPECT_CLOSE(first, plain_first, wide_tolerance_);
  EXPECT_CLOSE(second, plain_second, wide_tolerance_);
  EXPECT_TRUE(at::equal(weight, master.to(type_)));
}

// An update that is repeated for any range of elements is bit-identical. State that is sent before the update
// relies on this.
TEST_P(HostTest, AdamwOfPiecesIsBitIdentical) {
  const std::int64_t size = 20011;
  const at::Tensor gradient = wide("g", {size});
  at::Tensor master = wide("m", {size}), first = wide("f", {size}), second = wide("s", {size}).abs();
  at::Tensor weight = random("w", {size});
  at::Tensor by_pieces[] = {master.clone(), first.clone(), second.clone(), weight.clone()};
  const at::Tensor numbers = step_scalars_after_gate(at::kCPU, 1e-2, 3, 0.25);
  const AdamOptions options{.weight_decay = 0.1};
  host_->adamw(options, numbers, gradient, master, first, second, weight);
  const std::int64_t lengths[] = {1, 3, 7, 16, 100, 4097, 9000};  // vectors begin and end at any offset
  std::int64_t at = 0;
  for (std::size_t i = 0; at < size; ++i) {
    const std::int64_t length = std::min(lengths[i % std::size(lengths)], size - at);
    const auto piece = [&](const at::Tensor& tensor) { return tensor.narrow(0, at, length); };
    at::Tensor pieces[] = {piece(by_pieces[0]), piece(by_pieces[1]), piece(by_pieces[2]),
                           piece(by_pieces[3])};
    host_->adamw(options, numbers, piece(gradient), pieces[0], pieces[1], pieces[2], pieces[3]);
    at += length;
  }
  EXPECT_TRUE(at::equal(by_pieces[0], master));
  EXPECT_TRUE(at::equal(by_pieces[1], first));
  EXPECT_TRUE(at::equal(by_pieces[2], second));
  EXPECT_TRUE(at::equal(by_pieces[3], weight));
}

TEST_P(HostTest, AdamwWithWeightAsMaster) {
  const at::Tensor gradient = wide("g", {1000});
  at::Tensor master = wide("m", {1000}), first = at::zeros({1000}, master.options()), second = first.clone();
  at::Tensor other = master.clone(), other_first = first.clone(), other_second = first.clone(),
             weight = first.clone();
  const at::Tensor numbers = step_scalars_after_gate(at::kCPU, 1e-2);
  host_->adamw({}, numbers, gradient, master, first, second, master);
  host_->adamw({}, numbers, gradient, other, other_first, other_second, weight);
  EXPECT_TRUE(at::equal(master, other) && at::equal(weight, other));
}

// For sums of loss and squares, targets and loss scales: the numbers after the gate equal those of the
// reference, and the update happens or not.
TEST_P(HostTest, GateMatchesReference) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::vector<std::array<double, 4>> cases = {
      {1000, 9, 100, 1}, {1000, 1e8, 100, 256},   {0, 0, 1, 1}, {5, infinity, 100, 1}, {-infinity, 1, 10, 1},
      {5, 1, 0, 1},      {std::nan(""), 1, 10, 1}};
  for (const double clip : {0.0, 1.0})
    for (const auto& [loss, squares, counted, scale] : cases) {
      at::Tensor numbers = at::zeros({kNumStepScalars}, at::kDouble);
      auto* values = numbers.data_ptr<double>();
      step_scalar(values, StepScalar::learning_rate) = 1e-2, step_scalar(values, StepScalar::num_updates) = 4;
      step_scalar(values, StepScalar::loss_sum) = loss, step_scalar(values, StepScalar::square_sum) = squares;
      step_scalar(values, StepScalar::num_targets) = counted,
                          step_scalar(values, StepScalar::loss_scale) = scale;
      at::Tensor plain_numbers = numbers.clone();
      host_->pass_gate({.clip = clip}, numbers);
      plain_->pass_gate({.clip = clip}, plain_numbers);
      const bool is_finite = std::isfinite(loss) && std::isfinite(squares) && counted > 0;
      EXPECT_EQ(step_scalar(values, StepScalar::is_finite), is_finite ? 1 : 0) << loss << " " << squares;
      EXPECT_EQ(step_scalar(values, StepScalar::num_updates), is_finite ? 5 : 4);
      EXPECT_TRUE(at::allclose(numbers, plain_numbers, 1e-15, 0, /*equal_nan=*/true));
      if (is_finite && clip > 0) {  // the norm of clipped gradients is at most this
        EXPECT_LE(step_scalar(values, StepScalar::factor) * std::sqrt(squares), clip * (1 + 1e-15));
      }
      at::Tensor master = wide("m", {100}), first = at::zeros({100}, master.options()),
                 second = first.clone();
      const at::Tensor before = master.clone(), gradient = wide("g", {100});
      host_->adamw({}, numbers, gradient, master, first, second, master);
      EXPECT_EQ(at::equal(master, before), !is_finite);
      EXPECT_EQ(second.sum().item<double>() == 0, !is_finite);
    }
}

TEST_P(HostTest, SumsDoNotDependOnThreadCount) {
  const at::Tensor dout = random("d", {400, 200}),
                   ids = (random_tensor("i", {400}, at::kDouble) * 99).to(at::kLong).remainder(9);
  const at::Tensor flat = wide("f", {300000});
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> tables, sums;
  std::vector<double> squares;
  for (const int count : {1, 2, 3}) {
    at::set_num_threads(count);
    at::Tensor table = at::zeros({9, 200}, flat.options()), sum = at::zeros({200}, flat.options()), none;
    host_->embedding_backward(dout, ids, none, table, none, none);
    host_->add_rows(dout, sum);
    tables.push_back(table), sums.push_back(sum), squares.push_back(square_sum(*host_, flat));
  }
  at::set_num_threads(threads);
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_TRUE(at::equal(tables[i], tables[0]) && at::equal(sums[i], sums[0]));
    EXPECT_EQ(squares[i], squares[0]);
  }
}

TEST_P(HostTest, ConvertsRoundingToNearestEven) {
  at::Tensor from = wide("f", {1000}), to = at::zeros({1000}, from.options().dtype(type_));
  host_->convert(from, to);
  EXPECT_TRUE(at::equal(to, from.to(type_)));
}

}  // namespace
}  // namespace optimus
