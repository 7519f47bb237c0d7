// Speed of CudaKernels in bf16 for the shapes of two models: milliseconds, and GB/s of the minimum that a
// kernel must read and write.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAStream.h>
#include <cuda_runtime_api.h>

#include <functional>
#include <string>

#include "gpu/device_tensors.h"
#include "kernels/kernels.h"

namespace optimus::test {

// The mean of several runs after a warm-up, on the current stream.
inline double milliseconds_of(const std::function<void()>& work) {
  constexpr int kWarm = 3, kRuns = 20;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream().stream();
  cudaEvent_t begin = nullptr, end = nullptr;
  C10_CUDA_CHECK(cudaEventCreate(&begin));
  C10_CUDA_CHECK(cudaEventCreate(&end));
  for (int i = 0; i < kWarm; ++i) work();
  C10_CUDA_CHECK(cudaEventRecord(begin, stream));
  for (int i = 0; i < kRuns; ++i) work();
  C10_CUDA_CHECK(cudaEventRecord(end, stream));
  C10_CUDA_CHECK(cudaEventSynchronize(end));
  float total = 0;
  C10_CUDA_CHECK(cudaEventElapsedTime(&total, begin, end));
  C10_CUDA_CHECK(cudaEventDestroy(begin));
  C10_CUDA_CHECK(cudaEventDestroy(end));
  return static_cast<double>(total) / kRuns;
}

struct SpeedShape {
  std::string model;
  NormKind norm;
  Activation activation;
  bool is_gated;
  std::int64_t sequences, length, width, ffn, vocab, heads, head_dim;
};

class Speed {
 public:
  explicit Speed(const SpeedShape& shape)
      : of_(shape),
        rows_(shape.sequences * shape.length),
        x_(tensor(rows_, shape.width)),
        y_(tensor(rows_, shape.width)),
        z_(tensor(rows_, shape.width)),
        sum_(at::zeros({shape.width}, x_.options().dtype(at::kFloat))) {}

  void run() {
    fmt::print("{}, {} tokens, bf16\n", of_.model, rows_);
    norms();
    activations();
    streams();
    tables();
    loss();
    optimizer();
  }

 private:
  static at::Tensor tensor(std::int64_t rows, std::int64_t width) {
    return at::randn({rows, width}, at::TensorOptions(at::kBFloat16).device(at::kCUDA));
  }
  static double bytes(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }
  static void print_speed_of(const std::string& kernel, double bytes, const std::function<void()>& work) {
    const double milliseconds = milliseconds_of(work);
    fmt::print("  {:<24} {:8.3f} ms {:7.0f} GB/s\n", kernel, milliseconds, bytes / milliseconds * 1e-6);
  }

  void norms() {
    const bool is_layer = of_.norm == NormKind::layer_norm;
    const NormOptions options{.kind = of_.norm, .eps = 1e-5};
    const at::Tensor weight = tensor(1, of_.width).squeeze(0), bias = is_layer ? weight : at::Tensor();
    at::Tensor statistics = at::zeros({rows_, is_layer ? 2 : 1}, sum_.options()), other = sum_.clone();
    print_speed_of("norm", 2 * bytes(x_), [&] { kernels_->norm(options, x_, weight, bias, y_, statistics); });
    print_speed_of("norm backward", 4 * bytes(x_), [&] {
      kernels_->norm_backward(options, y_, x_, weight, statistics, z_, z_, sum_, other);
    });
  }

  void activations() {
    const at::Tensor up = tensor(rows_, of_.ffn * (of_.is_gated ? 2 : 1)), gradient = up.clone(),
                     dy = tensor(rows_, of_.ffn);
    const at::Tensor x = up.narrow(1, up.size(1) - of_.ffn, of_.ffn);
    const at::Tensor gate = of_.is_gated ? up.narrow(1, 0, of_.ffn) : at::Tensor();
    at::Tensor y = tensor(rows_, of_.ffn), dx = gradient.narrow(1, up.size(1) - of_.ffn, of_.ffn),
               d_gate = gradient.narrow(1, 0, of_.ffn);
    print_speed_of("activation", bytes(up) + bytes(y),
                   [&] { kernels_->activation(of_.activation, x, gate, y); });
    print_speed_of("activation backward", 2 * bytes(up) + bytes(y),
                   [&] { kernels_->activation_backward(of_.activation, dy, x, gate, dx, d_gate); });
    at::Tensor sum = at::zeros({of_.ffn}, sum_.options());
    print_speed_of("sum of rows", bytes(y), [&] { kernels_->add_rows(y, sum); });
  }

  void streams() {
    const at::Tensor bias = tensor(1, of_.width).squeeze(0);
    DropoutSite site{.rate = 0, .key = RandomKey(1), .samples = {}, .sequence_length = of_.length};
    for (std::int64_t i = 0; i < of_.sequences; ++i) site.samples.push_back(i);
    print_speed_of("add", 3 * bytes(x_), [&] { kernels_->add(x_, bias, y_, site, z_); });
    site.rate = 0.1;
    print_speed_of("add with dropout", 3 * bytes(x_), [&] { kernels_->add(x_, bias, y_, site, z_); });
    print_speed_of("dropout backward", 2 * bytes(x_), [&] { kernels_->dropout_backward(x_, site, z_); });
    const at::Tensor qkv = tensor(rows_, 2 * of_.heads * of_.head_dim);
    at::Tensor heads = qkv.narrow(1, 0, of_.heads * of_.head_dim).unflatten(1, {of_.heads, of_.head_dim});
    const at::Tensor angle = at::randn({of_.length, of_.head_dim / 2}, sum_.options()), cosine = angle.cos(),
                     sine = angle.sin();
    const at::Tensor places = at::randint(of_.length, {rows_}, sum_.options().dtype(at::kInt));
    print_speed_of("rope", bytes(qkv), [&] { kernels_->rope(heads, cosine, sine, places, false); });
  }

  void tables() {
    const at::Tensor tokens = tensor(of_.vocab, of_.width), positions = tensor(of_.length, of_.width), none;
    const at::Tensor ids = at::randint(of_.vocab, {rows_}, x_.options().dtype(at::kLong)),
                     places = at::randint(of_.length, {rows_}, x_.options().dtype(at::kInt));
    at::Tensor dt = at::zeros({of_.vocab, of_.width}, sum_.options()),
               dp = at::zeros({of_.length, of_.width}, sum_.options()), no_types;
    print_speed_of("embedding", 2 * bytes(x_),
                   [&] { kernels_->embedding(ids, places, tokens, positions, none, z_); });
    // Each table's gradient is read and written only in rows that occur: about once per token, in fp32.
    print_speed_of("embedding backward", 2 * bytes(x_) + 4 * bytes(x_),
                   [&] { kernels_->embedding_backward(x_, ids, places, dt, dp, no_types); });
  }

  void loss() {
    constexpr std::int64_t kRows = 4096;
    at::Tensor logits = tensor(kRows, of_.vocab), losses = at::zeros({kRows}, sum_.options());
    const at::Tensor targets = at::randint(of_.vocab, {kRows}, x_.options().dtype(at::kLong));
    print_speed_of("cross entropy", 2 * bytes(logits),
                   [&] { kernels_->cross_entropy(logits, targets, losses, 1); });
  }

  void optimizer() {
    constexpr std::int64_t kCount = 100'000'000;
    const at::Tensor gradient = at::randn({kCount}, sum_.options());
    at::Tensor master = at::zeros({kCount}, sum_.options()), first = master.clone(), second = master.clone(),
               weight = at::zeros({kCount}, x_.options()),
               square = at::zeros({1}, sum_.options().dtype(at::kDouble));
    const at::Tensor numbers = step_scalars_after_gate(at::kCUDA, 1e-3);
    print_speed_of("sum of squares", bytes(gradient), [&] { kernels_->add_square_sum(gradient, square); });
    print_speed_of("adamw", 7 * bytes(gradient) + bytes(weight),
                   [&] { kernels_->adamw({}, numbers, gradient, master, first, second, weight); });
    print_speed_of("convert", bytes(master) + bytes(weight), [&] { kernels_->convert(master, weight); });
  }

  const SpeedShape of_;
  const std::int64_t rows_;
  const std::unique_ptr<Kernels> kernels_ = make_cuda_kernels();
  at::Tensor x_, y_, z_, sum_;
};

inline void print_speed() {
  Speed({.model = "gpt2-124m",
         .norm = NormKind::layer_norm,
         .activation = Activation::gelu_tanh,
         .is_gated = false,
         .sequences = 64,
         .length = 1024,
         .width = 768,
         .ffn = 3072,
         .vocab = 50257,
         .heads = 12,
         .head_dim = 64})
      .run();
  Speed({.model = "llama-1b",
         .norm = NormKind::rms_norm,
         .activation = Activation::silu,
         .is_gated = true,
         .sequences = 8,
         .length = 2048,
         .width = 2048,
         .ffn = 8192,
         .vocab = 128256,
         .heads = 32,
         .head_dim = 64})
      .run();
}

}  // namespace optimus::test
