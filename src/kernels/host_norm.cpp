// Layer norm and RMS norm on CPUs. A row stays in the L1 cache during two or three passes.
#include <vector>

#include "kernels/host.h"
#include "kernels/host_lanes.h"
#include "kernels/host_rows.h"

namespace optimus {
namespace {

template <typename T>
void layer_norm_row(double eps, const T* x, const T* weight, const T* bias, std::int64_t width, T* y,
                    Wide<T>* statistics) {
  using W = Wide<T>;
  const W mean = lane_sum<W>(width, [=](std::int64_t j) { return load(x[j]); }) / static_cast<W>(width);
  const W variance = lane_sum<W>(width,
                                 [=](std::int64_t j) {
                                   const W centered = load(x[j]) - mean;
                                   return centered * centered;
                                 }) /
                     static_cast<W>(width);
  const W rstd = 1 / std::sqrt(variance + static_cast<W>(eps));
  statistics[0] = mean, statistics[1] = rstd;
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j)
    store(y[j], (load(x[j]) - mean) * rstd * load(weight[j]) + load(bias[j]));
}

template <typename T>
void rms_norm_row(double eps, const T* x, const T* weight, std::int64_t width, T* y, Wide<T>* statistics) {
  using W = Wide<T>;
  const W mean_square =
      lane_sum<W>(width, [=](std::int64_t j) { return load(x[j]) * load(x[j]); }) / static_cast<W>(width);
  const W rstd = 1 / std::sqrt(mean_square + static_cast<W>(eps));
  statistics[0] = rstd;
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) store(y[j], load(x[j]) * rstd * load(weight[j]));
}

// The inputs of the backward pass over one row.
template <typename T>
struct BackwardRow {
  const T *dy, *x, *weight, *residual;
  Wide<T> mean, rstd;
  std::int64_t width;
};

// Returns a and b of dx = rstd * (dy * weight - a - normed * b). a is the mean of the row's weighted
// gradient, and b is the mean of its product with the normed row.
template <typename T>
std::pair<Wide<T>, Wide<T>> gradient_means(const BackwardRow<T>& row, bool is_centered) {
  using W = Wide<T>;
  const auto count = static_cast<W>(row.width);
  const W projection_sum = lane_sum<W>(row.width, [=](std::int64_t j) {
    return load(row.dy[j]) * load(row.weight[j]) * ((load(row.x[j]) - row.mean) * row.rstd);
  });
  if (!is_centered) return {W{0}, projection_sum / count};
  const W upstream_sum =
      lane_sum<W>(row.width, [=](std::int64_t j) { return load(row.dy[j]) * load(row.weight[j]); });
  return {upstream_sum / count, projection_sum / count};
}

// Adds to the weight gradients before it writes dx, because dx may alias dy.
template <typename T>
void backward_row(const BackwardRow<T>& row, bool is_centered, T* dx, Wide<T>* weight_sum,
                  Wide<T>* bias_sum) {
  using W = Wide<T>;
  const auto [upstream_mean, projection_mean] = gradient_means(row, is_centered);
  const W a = upstream_mean, b = projection_mean, mean = row.mean, rstd = row.rstd;
  const T *dy = row.dy, *x = row.x, *weight = row.weight, *residual = row.residual;
  if (bias_sum != nullptr) {
#pragma omp simd
    for (std::int64_t j = 0; j < row.width; ++j) bias_sum[j] += load(dy[j]);
  }
#pragma omp simd
  for (std::int64_t j = 0; j < row.width; ++j) weight_sum[j] += load(dy[j]) * ((load(x[j]) - mean) * rstd);
  if (residual == nullptr) {
#pragma omp simd
    for (std::int64_t j = 0; j < row.width; ++j)
      store(dx[j], rstd * (load(dy[j]) * load(weight[j]) - a - (load(x[j]) - mean) * rstd * b));
  } else {
#pragma omp simd
    for (std::int64_t j = 0; j < row.width; ++j)
      store(dx[j],
            load(residual[j]) + rstd * (load(dy[j]) * load(weight[j]) - a - (load(x[j]) - mean) * rstd * b));
  }
}

template <typename T>
struct BackwardTensors {
  Rows<T> dy, x, residual, dx;
  Rows<Wide<T>> statistics;
  const T* weight;
};

template <typename T>
void backward_rows(const BackwardTensors<T>& tensors, bool is_centered, std::int64_t begin, std::int64_t end,
                   Wide<T>* weight_sum, Wide<T>* bias_sum) {
  for (std::int64_t r = begin; r < end; ++r) {
    const Wide<T>* statistics = tensors.statistics.row(r);
    const BackwardRow<T> row{.dy = tensors.dy.row(r),
                             .x = tensors.x.row(r),
                             .weight = tensors.weight,
                             .residual = tensors.residual.data == nullptr ? nullptr : tensors.residual.row(r),
                             .mean = is_centered ? statistics[0] : 0,
                             .rstd = statistics[is_centered ? 1 : 0],
                             .width = tensors.x.width};
    backward_row(row, is_centered, tensors.dx.row(r), weight_sum, bias_sum);
  }
}

// Every part of the rows has its own sums, which are added in the order of parts. The result is therefore
// deterministic for a given number of threads.
template <typename T>
void norm_backward_typed(const BackwardTensors<T>& tensors, bool is_centered, Wide<T>* weight_gradient,
                         Wide<T>* bias_gradient) {
  using W = Wide<T>;
  const std::int64_t num_rows = tensors.x.num_rows(), width = tensors.x.width;
  const std::int64_t num_parts = std::clamp<std::int64_t>(num_rows * width / 16384, 1, at::get_num_threads());
  std::vector<W> sums(static_cast<std::size_t>(num_parts * 2 * width), W{0});
  at::parallel_for(0, num_parts, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t part = first; part < last; ++part) {
      W* weight_sum = sums.data() + part * 2 * width;
      backward_rows(tensors, is_centered, num_rows * part / num_parts, num_rows * (part + 1) / num_parts,
                    weight_sum, bias_gradient == nullptr ? nullptr : weight_sum + width);
    }
  });
  for (std::int64_t part = 0; part < num_parts; ++part) {
    const W* weight_sum = sums.data() + part * 2 * width;
    for (std::int64_t j = 0; j < width; ++j) weight_gradient[j] += weight_sum[j];
    if (bias_gradient == nullptr) continue;
    for (std::int64_t j = 0; j < width; ++j) bias_gradient[j] += weight_sum[width + j];
  }
}

}  // namespace

void HostKernels::norm(const NormOptions& options, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& bias, at::Tensor& y, at::Tensor& statistics) const {
  with_element_type(x.scalar_type(), [&]<typename T>(T) {
    const Rows<T> from(x), to(y);
    const Rows<Wide<T>> statistics_rows(statistics);
    const T *weights = flat_data<T>(weight), *biases = flat_data<T>(bias);
    for_each_row(from.num_rows(), from.width, [&](std::int64_t r) {
      if (options.kind == NormKind::layer_norm)
        layer_norm_row(options.eps, from.row(r), weights, biases, from.width, to.row(r),
                       statistics_rows.row(r));
      else
        rms_norm_row(options.eps, from.row(r), weights, from.width, to.row(r), statistics_rows.row(r));
    });
  });
}

void HostKernels::norm_backward(const NormOptions& options, const at::Tensor& dy, const at::Tensor& x,
                                const at::Tensor& weight, const at::Tensor& statistics,
                                const at::Tensor& residual, at::Tensor& dx, at::Tensor& weight_gradient,
                                at::Tensor& bias_gradient) const {
  const bool is_centered = options.kind == NormKind::layer_norm;
  with_element_type(x.scalar_type(), [&]<typename T>(T) {
    const BackwardTensors<T> tensors{.dy = Rows<T>(dy),
                                     .x = Rows<T>(x),
                                     .residual = Rows<T>(residual),
                                     .dx = Rows<T>(dx),
                                     .statistics = Rows<Wide<T>>(statistics),
                                     .weight = flat_data<T>(weight)};
    norm_backward_typed(tensors, is_centered, flat_data<Wide<T>>(weight_gradient),
                        is_centered ? flat_data<Wide<T>>(bias_gradient) : nullptr);
  });
}

}  // namespace optimus
