// Benchmarks the CPU kernels: GB/s of each kernel, and attention in GFLOP/s, compared with plain or ATen
// implementations.
//
//   bench_kernels [THREADS] [fp32|bf16|fp16|fp64] [all|kernels|attention|ring]
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <ctime>
#include <functional>
#include <limits>
#include <string>

#include "kernels/attention.h"
#include "kernels/kernels.h"
#include "kernels/ring_attention.h"
#include "schedule/share.h"

using namespace optimus;

namespace {

// With one thread, CPU time is used, which other processes on the machine hardly affect.
double now() {
  if (at::get_num_threads() == 1) return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// The best of several runs, because other processes only make a run slower.
double seconds_of(const std::function<void()>& work) {
  double best = 1e9;
  const double end = now() + 0.5;
  for (int run = 0; run < 2 || now() < end; ++run) {
    const double start = now();
    work();
    best = std::min(best, now() - start);
  }
  return best;
}

void show(const std::string& name, double bytes, const std::function<void()>& host,
          const std::function<void()>& plain) {
  host(), plain();
  const double ours = seconds_of(host), theirs = seconds_of(plain);
  fmt::print("{:<28} {:8.3f} ms {:7.1f} GB/s   plain {:8.3f} ms   {:5.2f}x\n", name, ours * 1e3,
             bytes / ours * 1e-9, theirs * 1e3, theirs / ours);
}

// Runs both implementations of each kernel on the same tensors.
class Bench {
 public:
  explicit Bench(at::ScalarType type) : type_(type), wide_(type == at::kDouble ? at::kDouble : at::kFloat) {}

  void norms() {
    for (const NormKind kind : {NormKind::layer_norm, NormKind::rms_norm}) {
      const NormOptions options{.kind = kind, .eps = 1e-5};
      const bool is_layer = kind == NormKind::layer_norm;
      const std::string name = is_layer ? "layer norm" : "RMS norm";
      at::Tensor x = tensor({rows_, width_}), y = tensor({rows_, width_}), weight = tensor({width_});
      at::Tensor bias = is_layer ? tensor({width_}) : at::Tensor(),
                 statistics = at::zeros({rows_, is_layer ? 2 : 1}, wide_);
      at::Tensor dx = tensor({rows_, width_}), dw = at::zeros({width_}, wide_),
                 db = at::zeros({width_}, wide_);
      both(name, 2 * bytes(x), [&](const Kernels& k) { k.norm(options, x, weight, bias, y, statistics); });
      both(name + " backward", 4 * bytes(x),
           [&](const Kernels& k) { k.norm_backward(options, y, x, weight, statistics, x, dx, dw, db); });
    }
  }

  void activations() {
    at::Tensor x = tensor({rows_, 4 * width_}), y = tensor({rows_, 4 * width_}),
               gate = tensor({rows_, 4 * width_}), none;
    at::Tensor d_gate = tensor({rows_, 4 * width_});
    const std::pair<Activation, std::string> kinds[] = {
        {Activation::gelu, "gelu"}, {Activation::gelu_tanh, "gelu tanh"}, {Activation::silu, "silu"}};
    for (const auto& [kind, name] : kinds) {
      const Activation which = kind;
      both(name, 2 * bytes(x), [&](const Kernels& k) { k.activation(which, x, none, y); });
      both(name + " backward", 3 * bytes(x),
           [&](const Kernels& k) { k.activation_backward(which, d_gate, x, none, y, none); });
    }
    both("silu gated", 3 * bytes(x), [&](const Kernels& k) { k.activation(Activation::silu, x, gate, y); });
    both("silu gated backward", 5 * bytes(x),
         [&](const Kernels& k) { k.activation_backward(Activation::silu, x, x, gate, y, d_gate); });
  }

  void rest() {
    at::Tensor x = tensor({rows_, width_}), y = tensor({rows_, width_}), z = tensor({rows_, width_}), none;
    at::Tensor bias = tensor({width_}), sum = at::zeros({width_}, wide_);
    DropoutSite site{.rate = 0, .key = RandomKey(1), .samples = {}, .sequence_length = 256};
    for (std::int64_t i = 0; i < rows_ / 256; ++i) site.samples.push_back(i);
    both("add bias and residual", 3 * bytes(x), [&](const Kernels& k) { k.add(x, bias, y, site, z); });
    site.rate = 0.1;
    both("add with dropout", 3 * bytes(x), [&](const Kernels& k) { k.add(x, bias, y, site, z); });
    both("sum of rows", bytes(x), [&](const Kernels& k) { k.add_rows(x, sum); });
    at::Tensor heads = x.unflatten(1, {width_ / 64, 64});
    const at::Tensor angle = at::randn({256, 32}, wide_), cosine = angle.cos(), sine = angle.sin();
    const at::Tensor places = at::randint(256, {rows_}, at::kInt);
    both("rope", 2 * bytes(x), [&](const Kernels& k) { k.rope(heads, cosine, sine, places, false); });
    at::Tensor table = tensor({50257, width_}), gradient = at::zeros({50257, width_}, wide_),
               ids = at::randint(50257, {rows_}, at::kLong);
    both("embedding", 2 * bytes(x),
         [&](const Kernels& k) { k.embedding(ids, places, table, none, none, z); });
    both("embedding backward", bytes(x) + 2 * bytes(x.to(wide_)),
         [&](const Kernels& k) { k.embedding_backward(z, ids, places, gradient, none, none); });
    at::Tensor logits = tensor({256, 50257}), losses = at::zeros({256}, wide_),
               targets = at::randint(50257, {256}, at::kLong);
    both("cross entropy", 3 * bytes(logits),
         [&](const Kernels& k) { k.cross_entropy(logits, targets, losses, 1); });
  }

  void optimizer() {
    const std::int64_t size = 10'000'000;
    at::Tensor gradient = at::randn({size}, wide_), master = at::randn({size}, wide_),
               weight = tensor({size});
    at::Tensor first = at::zeros({size}, wide_), second = at::zeros({size}, wide_);
    at::Tensor sum = at::zeros({1}, at::kDouble), numbers = step_scalars_after_gate(at::kCPU, 1e-3);
    both("sum of squares", bytes(gradient), [&](const Kernels& k) { k.add_square_sum(gradient, sum); });
    both("AdamW", 7 * bytes(gradient) + bytes(weight),
         [&](const Kernels& k) { k.adamw({}, numbers, gradient, master, first, second, weight); });
    both("convert", bytes(master) + bytes(weight), [&](const Kernels& k) { k.convert(master, weight); });
  }

  // Causal attention, forward and backward: seven GEMMs, each over half of the square score matrix.
  void attention(std::int64_t length, double rate) {
    const std::int64_t heads = 12, head_dim = 64, sequences = 4096 / length, rows = sequences * length;
    AttentionTask task{.shape = {sequences, length, heads, heads, head_dim, true, 0.125}};
    task.dropout = {.rate = rate, .key = RandomKey(2), .samples = {}, .first_head = 0};
    for (std::int64_t i = 0; i < sequences; ++i) task.dropout.samples.push_back(i);
    const at::Tensor fused = tensor({rows, 3 * heads, head_dim}), dout = tensor({rows, heads, head_dim});
    const at::Tensor q = fused.narrow(1, 0, heads), k = fused.narrow(1, heads, heads),
                     v = fused.narrow(1, 2 * heads, heads);
    at::Tensor out = at::zeros({rows, heads, head_dim}, type_),
               logsumexp = at::zeros({sequences, heads, length}, wide_);
    at::Tensor grads = tensor({rows, 3 * heads, head_dim});
    at::Tensor dq = grads.narrow(1, 0, heads), dk = grads.narrow(1, heads, heads),
               dv = grads.narrow(1, 2 * heads, heads);
    // FLOPs of one GEMM over half of the square
    const double gemm_flops = static_cast<double>(rows * length * heads * head_dim);
    for (const bool is_ours : {true, false}) {
      if (!is_ours && rate != 0) return;
      const auto attention = is_ours ? make_host_attention() : make_fused_attention();
      const double forward = seconds_of([&] { attention->forward(task, q, k, v, out, logsumexp); });
      const double backward =
          seconds_of([&] { attention->backward(task, dout, q, k, v, out, logsumexp, dq, dk, dv); });
      fmt::print(
          "attention {:4} {:<14} forward {:7.2f} ms {:6.1f} GFLOP/s  backward {:7.2f} ms {:6.1f} GFLOP/s  "
          "sum {:7.2f} ms\n",
          length,
          !is_ours    ? "ATen's flash"
          : rate == 0 ? "ours"
                      : "ours, dropout",
          forward * 1e3, 2 * gemm_flops / forward * 1e-9, backward * 1e3, 5 * gemm_flops / backward * 1e-9,
          (forward + backward) * 1e3);
    }
  }

  // All ring steps of the context-parallel part with the most work, compared with the whole sequence at once:
  // the overhead of splitting. The part has 1 / cp of all attention scores.
  void ring(std::int64_t length, int cp) {
    const std::int64_t heads = 2, head_dim = 64;
    const AttentionTask whole{.shape = {1, length, heads, heads, head_dim, true, 0.125}};
    const at::Tensor q = tensor({length, heads, head_dim}), k = tensor({length, heads, head_dim}),
                     v = tensor({length, heads, head_dim}), dout = tensor({length, heads, head_dim});
    at::Tensor out = at::zeros({length, heads, head_dim}, type_), wide_out = out.to(wide_),
               logsumexp = at::zeros({1, heads, length}, wide_);
    at::Tensor dq = at::zeros_like(out), dk = at::zeros_like(out), dv = at::zeros_like(out);
    at::Tensor wide_dq = dq.to(wide_), wide_dk = dk.to(wide_), wide_dv = dv.to(wide_);
    const auto attention = make_attention(at::kCPU, type_);
    const double forward = seconds_of([&] { attention->forward(whole, q, k, v, out, logsumexp); });
    const double backward =
        seconds_of([&] { attention->backward(whole, dout, q, k, v, out, logsumexp, dq, dk, dv); });
    const std::int64_t own = length / cp;
    const std::vector<RingTask> ring_steps = make_ring_steps(whole.shape, cp);
    at::Tensor statistics = logsumexp.narrow(2, 0, own).contiguous();
    const auto attention_ring = make_ring_attention(at::kCPU);
    const double ring_forward = seconds_of([&] {
      wide_out.zero_(), statistics.fill_(-std::numeric_limits<double>::infinity());
      for (const RingTask& ring_step : ring_steps)
        attention_ring->forward(ring_step, q, k, v, wide_out, statistics);
    });
    out.copy_(wide_out);
    const double ring_backward = seconds_of([&] {
      for (const RingTask& ring_step : ring_steps)
        attention_ring->backward(ring_step, dout, q, k, v, out, statistics, wide_dq, wide_dk, wide_dv);
    });
    fmt::print(
        "ring {:6} cp {}   forward {:8.1f} ms, whole / cp {:8.1f} ms {:5.2f}x   backward {:8.1f} ms, "
        "whole / cp {:8.1f} ms {:5.2f}x\n",
        length, cp, ring_forward * 1e3, forward / cp * 1e3, ring_forward * cp / forward, ring_backward * 1e3,
        backward / cp * 1e3, ring_backward * cp / backward);
  }

 private:
  static std::vector<RingTask> make_ring_steps(const AttentionShape& shape, int cp) {
    const auto positions = [&](int part) {
      return share_of({.num_devices = cp, .strategy = {.cp = cp}}, part, 1, shape.length, false).positions;
    };
    std::vector<RingTask> ring_steps;
    for (int part = 0; part < cp; ++part)
      ring_steps.push_back({.shape = shape,
                            .own_length = shape.length / cp,
                            .key_length = shape.length / cp,
                            .pieces = ring_pieces(positions(0), positions(part), 1, shape.length, true, {}),
                            .dropout = {}});
    return ring_steps;
  }
  at::Tensor tensor(std::vector<std::int64_t> sizes) const { return at::randn(sizes, at::kFloat).to(type_); }
  static double bytes(const at::Tensor& x) {
    return static_cast<double>(x.numel()) * static_cast<double>(x.element_size());
  }
  void both(const std::string& name, double size, const std::function<void(const Kernels&)>& work) const {
    show(
        name, size, [&] { work(*host_); }, [&] { work(*plain_); });
  }

  at::ScalarType type_, wide_;
  std::int64_t rows_ = 2048, width_ = 768;
  std::unique_ptr<Kernels> host_ = make_host_kernels(), plain_ = make_plain_kernels();
};

}  // namespace

int main(int argc, char** argv) {
  const std::string type = argc > 2 ? argv[2] : "fp32", what = argc > 3 ? argv[3] : "all";
  at::set_num_threads(argc > 1 ? std::stoi(argv[1]) : 2);
  Bench bench(type == "bf16"   ? at::kBFloat16
              : type == "fp16" ? at::kHalf
              : type == "fp64" ? at::kDouble
                               : at::kFloat);
  fmt::print("{} threads, {}\n", at::get_num_threads(), type);
  if (what == "ring")
    for (const int cp : {1, 2, 4}) bench.ring(16384, cp);
  if (what == "ring") return 0;
  if (what != "attention") bench.norms(), bench.activations(), bench.rest(), bench.optimizer();
  if (what == "kernels") return 0;
  for (const std::int64_t length : {256, 512, 1024}) bench.attention(length, 0), bench.attention(length, 0.1);
}
