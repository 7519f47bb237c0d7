// Compares every kernel of CudaKernels, in each element type, with PlainKernels in fp64 on the same numbers
// and device; also GEMMs and attention (gemm_check.h). Then measures the kernels' speed
// (kernels_speed.h). Prints one line per kernel; exits with 1 if one is wrong.
//
//   kernels_check [--no-speed] [--own]     --own: only our own kernels in bf16, without the GEMMs and
//                                          attention of libraries: for compute-sanitizer, which is slow
#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/nan_to_num.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <limits>
#include <set>

#include "gpu/device_tensors.h"
#include "gpu/gemm_check.h"
#include "gpu/kernels_speed.h"
#include "kernels/attention.h"
#include "kernels/fp8.h"
#include "kernels/kernels.h"

using namespace optimus;
using namespace optimus::test;

namespace {

struct Size {
  std::int64_t rows, width;
};
// Empty tensors, every remainder of packs and warps, each way in which norms distribute a row, and rows too
// wide for all of them.
const std::vector<Size> kSizes = {{0, 8},     {1, 1},     {3, 7},     {5, 16},    {17, 33},
                                  {64, 96},   {130, 257}, {9, 1027},  {1000, 64}, {700, 128},
                                  {333, 768}, {40, 2048}, {65, 4096}, {5, 8192},  {3, 11008},
                                  {2, 16384}, {2, 16400}, {3, 5001},  {2, 16383}, {4099, 768}};
const std::vector<std::int64_t> kShifts = {0, 3, 8};

class Check {
 public:
  Check(at::ScalarType type, Differences& differences)
      : type_(type),
        wide_(wide_type(type)),
        tolerance_(tolerance(type)),
        wide_tolerance_(wide_tolerance(type)),
        differences_(differences) {}

  void run() {
    for (const Size& size : kSizes)
      for (const std::int64_t shift : kShifts) {
        size_ = size, shift_ = shift;
        // A single normed number is only a sign, and a single activation may be at a zero of the function,
        // where fp16 underflows: there is no magnitude to relate the error to.
        if (size.width > 1) norms(), activations();
        adds();
        score_factors();
        sums();
      }
    norm_of_heads();
    ropes();
    embeddings();
    cross_entropies();
    extreme_losses();
    square_sums();
    updates();
    gates();
    quantizes();
    fp8_outputs();
    quantizes_activation_gradients();
  }

 private:
  at::Tensor rows() const { return random_rows(size_.rows, size_.width, type_, shift_); }
  at::Tensor vector() const { return random_tensor({size_.width}, type_); }
  at::Tensor wide(std::vector<std::int64_t> sizes) const { return random_tensor(std::move(sizes), wide_); }
  void near(const std::string& kernel, const at::Tensor& got, const at::Tensor& expected) {
    differences_.compare(kernel, type_, got, expected, tolerance_);
  }
  void wide_near(const std::string& kernel, const at::Tensor& got, const at::Tensor& expected) {
    differences_.compare(kernel, type_, got, expected, wide_tolerance_);
  }
  void same(const std::string& kernel, const at::Tensor& a, const at::Tensor& b) {
    differences_.require(
        kernel, at::equal(a, b),
        fmt::format("{} {} differs in place or when repeated", kernel, c10::toString(type_)));
  }

  void norms() {
    for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
      const NormOptions options{.kind = kind, .eps = 1e-5};
      const bool is_layer = kind == NormKind::layer_norm;
      const at::Tensor x = rows(), weight = vector(), bias = is_layer ? vector() : at::Tensor();
      at::Tensor y = rows(), statistics = wide({size_.rows, is_layer ? 2 : 1});
      at::Tensor plain_y = in_double(x), plain_statistics = in_double(statistics);
      ours_->norm(options, x, weight, bias, y, statistics);
      plain_->norm(options, in_double(x), in_double(weight), in_double(bias), plain_y, plain_statistics);
      near("norm", y, plain_y);
      wide_near("norm statistics", statistics, plain_statistics);
      for (const at::Tensor& residual : {rows(), at::Tensor()})
        norm_backward(options, x, weight, statistics, residual);
    }
  }

  void norm_backward(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight,
                     const at::Tensor& statistics, const at::Tensor& residual) {
    const at::Tensor dy = rows();
    at::Tensor dx = rows(), dw = wide({size_.width}), db = wide({size_.width});
    const at::Tensor dw_before = dw.clone(), db_before = db.clone();
    at::Tensor plain_dx = in_double(x), plain_dw = in_double(dw), plain_db = in_double(db);
    ours_->norm_backward(options, dy, x, weight, statistics, residual, dx, dw, db);
    plain_->norm_backward(options, in_double(dy), in_double(x), in_double(weight), in_double(statistics),
                          in_double(residual), plain_dx, plain_dw, plain_db);
    near("norm backward", dx, plain_dx);
    wide_near("norm weight gradient", dw, plain_dw);
    wide_near("norm bias gradient", db, plain_db);
    at::Tensor over_dy = rows().copy_(dy), dw_again = dw_before.clone(), db_again = db_before.clone();
    ours_->norm_backward(options, over_dy, x, weight, statistics, residual, over_dy, dw_again, db_again);
    same("norm backward", over_dy, dx);
    same("norm weight gradient", dw_again, dw);
    same("norm bias gradient", db_again, db);
    norm_backward_with_sums(options, dy, x, weight, statistics, residual);
    if (!residual.defined()) return;
    at::Tensor over_residual = rows().copy_(residual);
    ours_->norm_backward(options, dy, x, weight, statistics, over_residual, over_residual, dw_again,
                         db_again);
    same("norm backward", over_residual, dx);
  }

  // Also with dx in the memory of the residual.
  void norm_backward_with_sums(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                               const at::Tensor& weight, const at::Tensor& statistics,
                               const at::Tensor& residual) {
    at::Tensor dx = rows(), dw = wide({size_.width}), db = wide({size_.width}), plain_dx = in_double(x),
               plain_dw = in_double(dw), plain_db = in_double(db);
    if (residual.defined()) dx.copy_(residual);
    const at::Tensor& added = residual.defined() ? dx : residual;
    StreamSums sums{residual.defined() ? wide({size_.width}) : at::Tensor(), wide({size_.width})};
    StreamSums plain_sums{in_double(sums.residual), in_double(sums.output)};
    ours_->norm_backward_with_sums(options, dy, x, weight, statistics, added, dx, dw, db, sums);
    plain_->norm_backward_with_sums(options, in_double(dy), in_double(x), in_double(weight),
                                    in_double(statistics), in_double(residual), plain_dx, plain_dw, plain_db,
                                    plain_sums);
    near("norm backward", dx, plain_dx);
    wide_near("norm weight gradient", dw, plain_dw);
    wide_near("norm bias gradient", db, plain_db);
    if (residual.defined()) wide_near("sums in norm backward", sums.residual, plain_sums.residual);
    // RMS norms and odd widths sum rounded values, each element of a column with an error of up to half a
    // unit in its last place: tolerance_ of it.
    if (size_.rows == 0) return;
    const double rounding =
        tolerance_ * (plain_dx.abs().sum(0).max() / plain_sums.output.abs().max()).item<double>();
    differences_.compare("sums in norm backward", type_, sums.output, plain_sums.output,
                         wide_tolerance_ + rounding);
  }

  void norm_of_heads() {
    const NormOptions options{.kind = NormKind::rms_norm, .eps = 1e-6};
    for (const std::int64_t dim : {24, 64, 128}) {
      const at::Tensor buffer = random_tensor({111, 7 * dim + 8}, type_),
                       weight = random_tensor({dim}, type_);
      const at::Tensor x = buffer.narrow(1, 8, 5 * dim).unflatten(1, {5, dim}), none;
      at::Tensor y = random_tensor({111, 5, dim}, type_);
      at::Tensor statistics = wide({111, 9}).narrow(1, 2, 5).unsqueeze(2), no_bias;
      at::Tensor plain_y = in_double(y), plain_statistics = in_double(statistics);
      ours_->norm(options, x, weight, none, y, statistics);
      plain_->norm(options, in_double(x), in_double(weight), none, plain_y, plain_statistics);
      near("norm of heads", y, plain_y);
      wide_near("norm statistics", statistics, plain_statistics);
      const at::Tensor dy = random_tensor({111, 5, dim}, type_);
      at::Tensor dx = random_tensor({111, 7 * dim}, type_).narrow(1, 0, 5 * dim).unflatten(1, {5, dim});
      at::Tensor dw = wide({dim}), plain_dx = in_double(dx), plain_dw = in_double(dw);
      ours_->norm_backward(options, dy, x, weight, statistics, none, dx, dw, no_bias);
      plain_->norm_backward(options, in_double(dy), in_double(x), in_double(weight), in_double(statistics),
                            none, plain_dx, plain_dw, no_bias);
      near("norm of heads backward", dx, plain_dx);
      wide_near("norm weight gradient", dw, plain_dw);
    }
  }

  void activations() {
    for (const Activation kind :
         {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu})
      for (const bool is_gated : {false, true}) {
        const at::Tensor x = rows().mul_(3), dy = rows(), gate = is_gated ? rows().mul_(3) : at::Tensor();
        at::Tensor y = rows(), dx = rows(), d_gate = rows();
        at::Tensor plain_y = in_double(x), plain_dx = in_double(x), plain_d_gate = in_double(x);
        ours_->activation(kind, x, gate, y);
        plain_->activation(kind, in_double(x), in_double(gate), plain_y);
        near("activation", y, plain_y);
        ours_->activation_backward(kind, dy, x, gate, dx, d_gate);
        plain_->activation_backward(kind, in_double(dy), in_double(x), in_double(gate), plain_dx,
                                    plain_d_gate);
        near("activation backward", dx, plain_dx);
        if (is_gated) near("activation backward", d_gate, plain_d_gate);
        at::Tensor over_dy = rows().copy_(dy), d_gate_again = rows();
        ours_->activation_backward(kind, over_dy, x, gate, over_dy, d_gate_again);
        same("activation backward", over_dy, dx);
        if (is_gated) same("activation backward", d_gate_again, d_gate);
      }
  }

  // Sequences of 7 rows, the last of them shorter: more sequences than one launch has keys for if there are
  // many rows.
  DropoutSite site(double rate) const {
    DropoutSite site{.rate = rate, .key = RandomKey(3).derive("site"), .samples = {}, .sequence_length = 7};
    for (std::int64_t i = 0; i * 7 < size_.rows; ++i) site.samples.push_back(1000 - 3 * i);
    return site;
  }

  void adds() {
    for (const double rate : {0.0, 0.1, 0.75})
      for (const bool has_bias : {true, false})
        for (const bool has_residual : {true, false}) {
          const at::Tensor none, x = rows(), bias = has_bias ? vector() : none,
                                 residual = has_residual ? rows() : none;
          at::Tensor y = rows(), plain_y = in_double(x);
          ours_->add(x, bias, residual, site(rate), y);
          plain_->add(in_double(x), in_double(bias), in_double(residual), site(rate), plain_y);
          near(rate > 0 ? "add with dropout" : "add", y, plain_y);
          at::Tensor in_place = rows().copy_(has_residual ? residual : x);
          ours_->add(has_residual ? x : in_place, bias, has_residual ? in_place : none, site(rate), in_place);
          same("add", in_place, y);
        }
    const at::Tensor dy = rows();
    at::Tensor dx = rows(), plain_dx = in_double(dy);
    ours_->dropout_backward(dy, site(0.3), dx);
    plain_->dropout_backward(in_double(dy), site(0.3), plain_dx);
    near("dropout backward", dx, plain_dx);
  }

  // The dropout factors of attention scores are bit-identical to those on the CPU, for any first query and
  // key.
  void score_factors() {
    if (c10::elementSize(type_) < 4) return;  // scores have the wider type
    const AttentionDropout dropout{
        .rate = 0.1, .key = RandomKey(5).derive("scores"), .samples = {11, 4}, .first_head = 3};
    const at::Tensor here = at::zeros({1}, at::TensorOptions(at::kCUDA).dtype(type_)), there = here.cpu();
    for (const std::int64_t heads : {1, 5, 300})
      for (const auto& [queries, keys] :
           {std::pair(Span{0, 70}, Span{0, 70}), std::pair(Span{9, 40}, Span{33, 130}),
            std::pair(Span{1, 2}, Span{129, 130})})
        differences_.require(
            "dropout of scores",
            at::equal(dropout_factors(dropout, 1, heads, queries, keys, here).cpu(),
                      dropout_factors(dropout, 1, heads, queries, keys, there)),
            fmt::format("dropout of scores, {} heads from {} and {}", heads, queries.begin, keys.begin));
  }

  void sums() {
    const at::Tensor x = rows();
    at::Tensor sum = wide({size_.width}), again = sum.clone(), plain_sum = in_double(sum);
    ours_->add_rows(x, sum);
    ours_->add_rows(x, again);
    plain_->add_rows(in_double(x), plain_sum);
    wide_near("sum of rows", sum, plain_sum);
    same("sum of rows", sum, again);
  }

  void ropes() {
    for (const std::int64_t half : {1, 4, 9, 32, 64})
      for (const std::int64_t shift : {5, 8}) {
        const std::int64_t num_rows = 113, heads = 3;
        at::Tensor x = random_tensor({num_rows, heads * 2 * half + 8 + shift}, type_)
                           .narrow(1, shift, heads * 2 * half)
                           .unflatten(1, {heads, 2 * half});
        const at::Tensor angle = wide({20, half}), cosine = angle.cos(), sine = angle.sin();
        const at::Tensor positions = at::randint(20, {num_rows}, x.options().dtype(at::kInt));
        at::Tensor plain_x = in_double(x);
        const at::Tensor before = in_double(x);
        ours_->rope(x, cosine, sine, positions, false);
        plain_->rope(plain_x, in_double(cosine), in_double(sine), positions, false);
        near("rope", x, plain_x);
        ours_->rope(x, cosine, sine, positions, true);
        differences_.compare("rope and back", type_, x, before, 2 * tolerance_);  // rounded twice
      }
  }

  void embeddings() {
    for (const std::int64_t width : {1, 37, 96, 768, 2049})
      for (const std::int64_t num_ids : {1, 3, 19, 5000})  // 1: a single id spans many pieces
        for (const std::int64_t num_rows : {0, 1, 63, 64, 65, 128, 1000}) embedding(width, num_ids, num_rows);
  }
  void embedding(std::int64_t width, std::int64_t num_ids, std::int64_t num_rows) {
    const at::Tensor tokens = random_tensor({num_ids, width}, type_),
                     positions = random_tensor({8, width}, type_), types = random_tensor({2, width}, type_);
    const at::Tensor ids = at::randint(num_ids, {num_rows}, tokens.options().dtype(at::kLong)),
                     places = at::randint(8, {num_rows}, tokens.options().dtype(at::kInt)), none;
    for (const bool is_full : {true, false}) {
      at::Tensor out = random_rows(num_rows, width, type_, is_full ? 8 : 3), plain_out = in_double(out);
      ours_->embedding(ids, places, tokens, is_full ? positions : none, is_full ? types : none, out);
      plain_->embedding(ids, places, in_double(tokens), is_full ? in_double(positions) : none,
                        is_full ? in_double(types) : none, plain_out);
      near("embedding", out, plain_out);
      at::Tensor dt = wide({num_ids, width}), dp = is_full ? wide({8, width}) : none;
      at::Tensor dy = is_full ? wide({2, width}) : none, again = dt.clone(), undefined;
      at::Tensor plain_dt = in_double(dt), plain_dp = in_double(dp), plain_dy = in_double(dy);
      ours_->embedding_backward(out, ids, places, dt, dp, dy);
      ours_->embedding_backward(out, ids, places, again, undefined, undefined);
      plain_->embedding_backward(in_double(out), ids, places, plain_dt, plain_dp, plain_dy);
      wide_near("embedding backward", dt, plain_dt);
      same("embedding backward", dt, again);
      if (!is_full) continue;
      wide_near("embedding backward", dp, plain_dp);
      wide_near("embedding backward", dy, plain_dy);
    }
  }

  void cross_entropies() {
    for (const std::int64_t vocab : {1, 2, 31, 1024, 1025, 5003, 50257, 128256})
      for (const std::int64_t shift : kShifts) {
        const std::int64_t num_rows = 21;
        const at::Tensor before = random_rows(num_rows, vocab, type_, shift).mul_(4);
        at::Tensor targets = at::randint(vocab, {num_rows}, before.options().dtype(at::kLong));
        targets[3] = -1, targets[20] = -1;
        at::Tensor logits = random_rows(num_rows, vocab, type_, shift).copy_(before);
        at::Tensor plain_logits = in_double(before), losses = wide({num_rows}),
                   plain_losses = in_double(losses);
        at::Tensor only_losses = losses.clone();
        ours_->cross_entropy(logits, targets, only_losses, 0);
        same("cross entropy", logits, before);
        ours_->cross_entropy(logits, targets, losses, 0.37);
        plain_->cross_entropy(plain_logits, targets, plain_losses, 0.37);
        same("cross entropy", losses, only_losses);
        wide_near("cross entropy", losses, plain_losses);
        near("cross entropy gradient", logits, plain_logits);
        differences_.require("cross entropy",
                             logits[3].abs().max().item<double>() == 0 && losses[20].item<double>() == 0,
                             "cross entropy counts targets of -1");
      }
  }

  void extreme_losses() {
    at::Tensor logits = at::full({3, 40}, -1e4, at::TensorOptions(at::kDouble).device(at::kCUDA)).to(type_);
    at::Tensor losses = wide({3}), targets = at::full({3}, 5, logits.options().dtype(at::kLong));
    logits[0][5] = 1e4;                                         // certain and correct
    logits[1].fill_(-std::numeric_limits<double>::infinity());  // all but one excluded
    logits[1][7] = 0;
    logits[2][39] = std::numeric_limits<double>::quiet_NaN();
    targets[1] = 7;
    ours_->cross_entropy(logits, targets, losses, 1);
    const bool is_right =
        std::abs(losses[0].item<double>()) < 1e-12 && std::abs(losses[1].item<double>()) < 1e-12 &&
        logits.narrow(0, 0, 2).abs().max().item<double>() == 0 && std::isnan(losses[2].item<double>());
    differences_.require("cross entropy", is_right, "cross entropy of extreme logits");
  }

  void square_sums() {
    for (const std::int64_t count : {0, 1, 100, 70001, 3000000})
      for (const std::int64_t shift : {0, 1}) {
        at::Tensor flat = wide({count + shift}).narrow(0, shift, count);
        at::Tensor sum = at::full({1}, 0.5, flat.options().dtype(at::kDouble)), plain_sum = sum.clone();
        ours_->add_square_sum(flat, sum);
        plain_->add_square_sum(flat.to(at::kDouble), plain_sum);
        differences_.compare("sum of squares", type_, sum, plain_sum, 1e-12);
        if (count == 0) continue;
        flat[count - 1] = std::numeric_limits<double>::infinity();
        ours_->add_square_sum(flat, sum);
        differences_.require("sum of squares", std::isinf(sum.item<double>()),
                             "an infinite gradient is not detected");
      }
  }

  void updates() {
    for (const std::int64_t size : {1, 1000, 20011})
      for (const std::int64_t shift : {0, 1}) {
        const auto part = [&](const at::Tensor& whole) { return whole.narrow(0, shift, size); };
        at::Tensor master = part(wide({size + 1})), first = part(at::zeros({size + 1}, master.options())),
                   second = part(at::zeros({size + 1}, master.options())),
                   weight = part(random_tensor({size + 1}, type_));
        at::Tensor plain_master = in_double(master), plain_first = in_double(first),
                   plain_second = in_double(second), plain_weight = in_double(weight);
        for (int step = 1; step <= 5; ++step) {
          const AdamOptions options{.weight_decay = 0.1};
          const at::Tensor numbers = step_scalars_after_gate(at::kCUDA, 1e-2, step, 0.25);
          const at::Tensor gradient = part(wide({size + 1}));
          ours_->adamw(options, numbers, gradient, master, first, second, weight);
          plain_->adamw(options, numbers, in_double(gradient), plain_master, plain_first, plain_second,
                        plain_weight);
        }
        wide_near("adamw", master, plain_master);
        wide_near("adamw", first, plain_first);
        wide_near("adamw", second, plain_second);
        same("adamw", weight, master.to(type_));
      }
  }

  // The gate passes, clips, and stops non-finite updates.
  void gates() {
    const double infinity = std::numeric_limits<double>::infinity();
    for (const double clip : {0.0, 1.0})
      for (const auto& [loss, squares] : std::vector<std::pair<double, double>>{
               {1000, 9}, {1000, 1e8}, {infinity, 1}, {1, infinity}, {std::nan(""), 1}}) {
        const auto numbers = at::zeros({kNumStepScalars}, at::kDouble);
        auto* values = numbers.data_ptr<double>();
        number(values, StepScalar::learning_rate) = 1e-2, number(values, StepScalar::num_updates) = 4;
        number(values, StepScalar::num_targets) = 100, number(values, StepScalar::loss_scale) = 2;
        number(values, StepScalar::loss_sum) = loss, number(values, StepScalar::square_sum) = squares;
        at::Tensor here = numbers.to(at::kCUDA), plain_numbers = numbers.clone();
        ours_->pass_gate({.clip = clip}, here);
        plain_->pass_gate({.clip = clip}, plain_numbers);
        differences_.require("gate", at::allclose(here.cpu(), plain_numbers, 1e-14, 0, true),
                             fmt::format("gate with loss {} and squares {}", loss, squares));
        at::Tensor master = wide({100}), first = at::zeros({100}, master.options()), second = first.clone();
        const at::Tensor before = master.clone();
        ours_->adamw({}, here, wide({100}), master, first, second, master);
        differences_.require("gate", at::equal(master, before) != std::isfinite(loss + squares),
                             "an update after a closed gate, or none after an open one");
      }
  }

  // Compared with the three kernels that it replaces: with rounding to 16 bits in between, so bit-identical
  // except for the sums.
  void quantizes_activation_gradients() {
    if (type_ != at::kBFloat16) return;
    for (const Size& size : std::vector<Size>{{16, 16}, {144, 272}, {1040, 768}, {33, 48}})
      for (const Activation kind :
           {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu})
        for (const bool is_gated : {false, true}) {
          const at::Tensor x = random_rows(size.rows, size.width, type_, 8),
                           dy = random_rows(size.rows, size.width, type_, 0),
                           gate = is_gated ? random_rows(size.rows, size.width, type_, 8) : at::Tensor();
          const at::Tensor scale = at::full({}, 1024, x.options().dtype(at::kFloat));
          const std::int64_t columns = is_gated ? 2 * size.width : size.width;
          const auto make_output = [&](std::int64_t rows, std::int64_t width) {
            return at::full({rows, width}, 77, x.options().dtype(at::kByte)).view(at::kFloat8_e5m2);
          };
          at::Tensor y = make_output(size.rows, columns), transposed = make_output(columns, size.rows), sum,
                     expected_sum, expected_y = make_output(size.rows, columns),
                     expected_transposed = make_output(columns, size.rows);
          if (!is_gated) sum = wide({size.width}), expected_sum = sum.clone();
          at::Tensor maximum = at::full({}, 0, scale.options()), expected_maximum = maximum.clone();
          ours_->quantize_activation_gradient(kind, dy, x, gate, scale, y, transposed, maximum, sum);
          ours_->Kernels::quantize_activation_gradient(kind, dy, x, gate, scale, expected_y,
                                                       expected_transposed, expected_maximum, expected_sum);
          same("quantise through", y.view(at::kByte), expected_y.view(at::kByte));
          same("quantise through", transposed.view(at::kByte), expected_transposed.view(at::kByte));
          same("quantise through", maximum, expected_maximum);
          if (!is_gated) wide_near("quantise through, sums", sum, expected_sum);
        }
  }

  // fp8 output is bit-identical to rounding the 16-bit output. A norm that reduces in a different order may
  // round to a different 16-bit number.
  void fp8_outputs() {
    if (type_ != at::kBFloat16) return;
    const auto make_output = [&](std::int64_t rows, std::int64_t width, bool turns) {
      const auto bytes = [&](std::int64_t r, std::int64_t w) {
        return at::full({r, w}, 77, at::TensorOptions(at::kByte).device(at::kCUDA)).view(at::kFloat8_e4m3fn);
      };
      const at::TensorOptions wide(at::TensorOptions(at::kFloat).device(at::kCUDA));
      return Fp8Output{bytes(rows, width), turns ? bytes(width, rows) : at::Tensor(), at::full({}, 64, wide),
                       at::full({}, 0.25, wide)};
    };
    const auto compare = [&](const char* what, const Fp8Output& ours, const Fp8Output& expected) {
      same(what, ours.y.view(at::kByte), expected.y.view(at::kByte));
      if (ours.transposed.defined())
        same(what, ours.transposed.view(at::kByte), expected.transposed.view(at::kByte));
      same(what, ours.maximum, expected.maximum);
    };
    for (const Size& size :
         std::vector<Size>{{16, 16}, {144, 272}, {1040, 768}, {64, 1600}, {32, 2048}, {48, 8192}})
      for (const bool has_more : {true, false}) {
        const at::Tensor x = random_rows(size.rows, size.width, type_, 8);
        const at::Tensor other = has_more ? random_rows(size.rows, size.width, type_, 8) : at::Tensor();
        for (const Activation kind :
             {Activation::gelu, Activation::gelu_tanh, Activation::silu, Activation::relu}) {
          Fp8Output ours = make_output(size.rows, size.width, true),
                    expected = make_output(size.rows, size.width, true);
          ours_->activation_to_fp8(kind, x, other, ours);
          ours_->Kernels::activation_to_fp8(kind, x, other, expected);
          compare("activation to fp8", ours, expected);
          at::Tensor transposed = at::zeros_like(ours.transposed.view(at::kByte)).view(at::kFloat8_e4m3fn);
          ours_->transpose_fp8(ours.y, transposed);
          same("transposition of fp8", transposed.view(at::kByte), expected.transposed.view(at::kByte));
        }
        const at::Tensor weight = at::randn({size.width}, x.options()),
                         bias = has_more ? at::randn({size.width}, x.options()) : at::Tensor();
        for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
          Fp8Output ours = make_output(size.rows, size.width, false),
                    expected = make_output(size.rows, size.width, false);
          at::Tensor statistics = wide({size.rows, kind == NormKind::layer_norm ? 2 : 1}),
                     expected_statistics = statistics.clone();
          ours_->norm_to_fp8({kind, 1e-5}, x, weight, bias, statistics, ours);
          ours_->Kernels::norm_to_fp8({kind, 1e-5}, x, weight, bias, expected_statistics, expected);
          compare("norm to fp8", ours, expected);
          same("norm to fp8", statistics, expected_statistics);
        }
      }
  }

  // Bit-identical, including numbers that are not finite, too large or too small, edges of tiles, and columns
  // of a wider buffer.
  void quantizes() {
    if (type_ != at::kBFloat16 && type_ != at::kHalf) return;
    for (const Size& size :
         std::vector<Size>{{16, 16}, {144, 272}, {128, 128}, {1040, 768}, {33, 48}, {64, 50}})
      for (const std::int64_t shift : kShifts)
        for (const Fp8Operand operand : {Fp8Operand::input, Fp8Operand::gradient}) {
          at::Tensor x = random_rows(size.rows, size.width, type_, shift);
          const std::vector<double> odd = {0,
                                           -0.0,
                                           1e-38,
                                           6e4,
                                           -6e4,
                                           448,
                                           449,
                                           57344,
                                           6e4,
                                           1e-7,
                                           1.0625,
                                           std::numeric_limits<double>::infinity(),
                                           -std::numeric_limits<double>::infinity(),
                                           std::nan("")};
          for (std::size_t i = 0; i < odd.size(); ++i)
            x[static_cast<std::int64_t>(i) % size.rows][static_cast<std::int64_t>(3 * i) % size.width] =
                odd[i];
          for (const bool has_odd : {true, false}) {
            if (!has_odd) x.copy_(at::nan_to_num(x, 1, 1, 1).clamp(-1000, 1000));
            const at::Tensor scale = at::full({}, 8, x.options().dtype(at::kFloat));
            const auto make_output = [&](std::int64_t rows, std::int64_t width) {
              return at::full({rows, width}, 77, x.options().dtype(at::kByte)).view(fp8_type(operand));
            };
            at::Tensor y = make_output(size.rows, size.width),
                       transposed = make_output(size.width, size.rows),
                       expected_y = make_output(size.rows, size.width),
                       expected_transposed = make_output(size.width, size.rows);
            at::Tensor maximum = at::full({}, 0.5, scale.options()), expected_maximum = maximum.clone(), none;
            ours_->quantize(operand, x, scale, y, transposed, maximum);
            plain_->quantize(operand, x, scale, expected_y, expected_transposed, expected_maximum);
            const auto bytes = [](const at::Tensor& tensor) {
              return tensor.view(at::kByte).bitwise_and(0xff);
            };
            // NaN has two signs, and in e5m2 three fractions: all are equal here.
            const auto numbers = [](const at::Tensor& tensor) {
              return at::nan_to_num(tensor.to(at::kFloat), 1e9, 2e9, 3e9);
            };
            same("quantise", numbers(y), numbers(expected_y));
            same("quantise", numbers(transposed), numbers(expected_transposed));
            if (!has_odd)
              same("quantise", bytes(y), bytes(expected_y)),
                  same("quantise", bytes(transposed), bytes(expected_transposed));
            same("quantise", at::nan_to_num(maximum, -1, -2, -3),
                 at::nan_to_num(expected_maximum, -1, -2, -3));
            at::Tensor alone = make_output(size.width, size.rows);
            ours_->quantize(operand, x, scale, none, alone, none);
            same("quantise", numbers(alone), numbers(transposed));
          }
        }
  }

  const at::ScalarType type_, wide_;
  const double tolerance_, wide_tolerance_;
  Differences& differences_;
  const std::unique_ptr<Kernels> ours_ = make_cuda_kernels(), plain_ = make_plain_kernels();
  Size size_{};
  std::int64_t shift_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd_dispatch;
  at::manual_seed(7);
  Differences differences;
  const std::set<std::string> words(argv + 1, argv + argc);
  for (const at::ScalarType type : kTypes)
    if (type == at::kBFloat16 || !words.contains("--own")) Check(type, differences).run();
  if (!words.contains("--own"))
    for (const at::ScalarType type : {at::kBFloat16, at::kHalf}) GemmCheck(type, differences).run();
  const bool is_right = differences.print();
  if (!words.contains("--no-speed")) print_speed();
  return is_right ? 0 : 1;
}
