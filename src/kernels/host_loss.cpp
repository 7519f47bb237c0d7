// Softmax cross entropy on CPUs, with one pass over the logits for the loss and another one for the gradient.
#include <limits>

#include "kernels/host.h"
#include "kernels/host_lanes.h"
#include "kernels/host_rows.h"

namespace optimus {
namespace {

// The maximum of a row, and the sum of e^(x - max) over the row.
template <typename Number>
struct ExponentialSum {
  Number max;
  double sum;
};

template <typename T>
Wide<T> largest_logit(const T* logits, std::int64_t count, Wide<T> at_least) {
  return lane_max<Wide<T>>(count, at_least, [=](std::int64_t j) { return load(logits[j]); });
}

template <typename T>
Wide<T> exponential_sum(const T* logits, std::int64_t count, Wide<T> max) {
  return lane_sum<Wide<T>>(count, [=](std::int64_t j) { return exponential(load(logits[j]) - max); });
}

// Processes the row in pieces that fit into the L1 cache. For each piece, finds the largest logit and then
// adds the exponentials. If there is a new maximum, the sum so far is rescaled. The sums of the pieces are
// added in fp64, so that a vocabulary of 10^5 tokens does not lose precision.
template <typename T>
ExponentialSum<Wide<T>> sum_exponentials(const T* logits, std::int64_t vocab) {
  constexpr std::int64_t kPiece = 1024;
  ExponentialSum<Wide<T>> result{std::numeric_limits<Wide<T>>::lowest(), 0};
  for (std::int64_t begin = 0; begin < vocab; begin += kPiece) {
    const std::int64_t count = std::min(kPiece, vocab - begin);
    const Wide<T> max = largest_logit(logits + begin, count, result.max);
    if (max > result.max) result.sum *= std::exp(static_cast<double>(result.max) - static_cast<double>(max));
    result.max = max;
    result.sum += static_cast<double>(exponential_sum(logits + begin, count, max));
  }
  return result;
}

template <typename T>
void gradient_row(T* logits, std::int64_t vocab, std::int64_t target, const ExponentialSum<Wide<T>>& total,
                  double scale) {
  using W = Wide<T>;
  const W factor = static_cast<W>(scale / total.sum), max = total.max;
  const double target_probability =
      std::exp(static_cast<double>(load(logits[target])) - static_cast<double>(max)) / total.sum;
#pragma omp simd
  for (std::int64_t j = 0; j < vocab; ++j) store(logits[j], exponential(load(logits[j]) - max) * factor);
  store(logits[target], static_cast<W>((target_probability - 1) * scale));
}

}  // namespace

void HostKernels::cross_entropy(at::Tensor& logits, const at::Tensor& targets, at::Tensor& losses,
                                double gradient_scale) const {
  with_element_type(logits.scalar_type(), [&]<typename T>(T) {
    const Rows<T> rows(logits);
    const auto* target_ids = flat_data<std::int64_t>(targets);
    auto* results = flat_data<Wide<T>>(losses);
    for_each_row(rows.num_rows(), rows.width, [&](std::int64_t r) {
      T* row = rows.row(r);
      ensure(target_ids[r] >= -1 && target_ids[r] < rows.width,
             "target {} is outside the vocabulary of {} tokens", target_ids[r], rows.width);
      if (target_ids[r] < 0) {
        results[r] = 0;
        if (gradient_scale != 0) std::fill(row, row + rows.width, T(0));
        return;
      }
      const auto total = sum_exponentials(row, rows.width);
      const double shifted_target_logit =
          static_cast<double>(load(row[target_ids[r]])) - static_cast<double>(total.max);
      results[r] = static_cast<Wide<T>>(std::log(total.sum) - shifted_target_logit);
      if (gradient_scale != 0) gradient_row(row, rows.width, target_ids[r], total, gradient_scale);
    });
  });
}

void HostKernels::loss_statistics(const at::Tensor& logits, const at::Tensor& targets,
                                  at::Tensor& statistics) const {
  with_element_type(logits.scalar_type(), [&]<typename T>(T) {
    const Rows<T> rows(logits);
    const Rows<Wide<T>> results(statistics);
    const auto* target_ids = flat_data<std::int64_t>(targets);
    for_each_row(rows.num_rows(), rows.width, [&](std::int64_t r) {
      const T* row = rows.row(r);
      ensure(target_ids[r] >= -2 && target_ids[r] < rows.width,
             "target {} is outside the range of {} columns", target_ids[r], rows.width);
      const auto total = sum_exponentials(row, rows.width);
      Wide<T>* to = results.row(r);
      to[0] = total.max, to[1] = static_cast<Wide<T>>(total.sum);
      to[2] = target_ids[r] < 0 ? Wide<T>{0} : load(row[target_ids[r]]);
    });
  });
}

void HostKernels::loss_gradient(at::Tensor& logits, const at::Tensor& targets, const at::Tensor& logsumexp,
                                double gradient_scale) const {
  with_element_type(logits.scalar_type(), [&]<typename T>(T) {
    using W = Wide<T>;
    const Rows<T> rows(logits);
    const auto* target_ids = flat_data<std::int64_t>(targets);
    const auto* sums = flat_data<W>(logsumexp);
    const W scale = static_cast<W>(gradient_scale);
    for_each_row(rows.num_rows(), rows.width, [&](std::int64_t r) {
      T* row = rows.row(r);
      if (target_ids[r] == -1) return static_cast<void>(std::fill(row, row + rows.width, T(0)));
      const W sum = sums[r];
      const W target_probability = target_ids[r] < 0 ? W{0} : exponential(load(row[target_ids[r]]) - sum);
#pragma omp simd
      for (std::int64_t j = 0; j < rows.width; ++j) store(row[j], exponential(load(row[j]) - sum) * scale);
      if (target_ids[r] >= 0) store(row[target_ids[r]], (target_probability - 1) * scale);
    });
  });
}

}  // namespace optimus
