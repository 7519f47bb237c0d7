// Residual additions with bias and dropout, the gradient of dropout, and sums over rows (bias gradients).
#include <vector>

#include "kernels/host.h"
#include "kernels/host_dropout.h"
#include "kernels/host_rows.h"

namespace optimus {
namespace {

// The dropout factors of one row: 0 or 1 / (1 - rate).
template <typename Number>
class RowMask {
 public:
  RowMask(const DropoutSite& site, std::int64_t width)
      : site_(site),
        rule_(site.rate),
        retained_(static_cast<std::size_t>(width)),
        factors_(retained_.size()) {}

  const Number* of(std::int64_t row) {
    row += site_.first_row;
    const std::int64_t sequence = row / site_.sequence_length,
                       position = site_.positions(row % site_.sequence_length);
    const auto sample = static_cast<std::uint64_t>(site_.samples[static_cast<std::size_t>(sequence)]);
    fill_retained(site_.key.derive(sample), static_cast<std::uint64_t>(position) * retained_.size(), rule_,
                  retained_);
    const auto scale = static_cast<Number>(rule_.scale);
    for (std::size_t j = 0; j < retained_.size(); ++j) factors_[j] = retained_[j] != 0 ? scale : Number{0};
    return factors_.data();
  }

 private:
  const DropoutSite& site_;
  DropoutRule rule_;
  std::vector<std::uint8_t> retained_;
  std::vector<Number> factors_;
};

void ensure_samples(const DropoutSite& site, std::int64_t num_rows) {
  ensure(site.sequence_length > 0 && static_cast<std::int64_t>(site.samples.size()) * site.sequence_length >=
                                         site.first_row + num_rows,
         "dropout: {} rows starting at {} exceed {} samples of length {}", num_rows, site.first_row,
         site.samples.size(), site.sequence_length);
}

// y = residual + (x + bias) * mask, where each operand is optional. Template parameters keep branches out of
// the loops.
template <bool HasBias, bool HasResidual, bool HasMask, typename T>
void add_row(const T* x, const T* bias, const T* residual, const Wide<T>* mask, std::int64_t width, T* y) {
#pragma omp simd
  for (std::int64_t j = 0; j < width; ++j) {
    Wide<T> sum = load(x[j]);
    if constexpr (HasBias) sum += load(bias[j]);
    if constexpr (HasMask) sum *= mask[j];
    if constexpr (HasResidual) sum += load(residual[j]);
    store(y[j], sum);
  }
}

template <bool HasMask, typename T>
void add_row_with_operands(const T* x, const T* bias, const T* residual, const Wide<T>* mask,
                           std::int64_t width, T* y) {
  if (bias != nullptr && residual != nullptr)
    return add_row<true, true, HasMask>(x, bias, residual, mask, width, y);
  if (bias != nullptr) return add_row<true, false, HasMask>(x, bias, residual, mask, width, y);
  if (residual != nullptr) return add_row<false, true, HasMask>(x, bias, residual, mask, width, y);
  add_row<false, false, HasMask>(x, bias, residual, mask, width, y);
}

// Adds the sum of column j of x to sum[j], for columns begin to end (exclusive). Processes eight rows at a
// time to shorten the dependency chain of additions.
template <typename T>
void add_columns(const Rows<T>& x, std::int64_t begin, std::int64_t end, Wide<T>* sum) {
  std::int64_t r = 0;
  for (; r + 8 <= x.num_rows(); r += 8) {
    const T *a = x.row(r), *b = x.row(r + 1), *c = x.row(r + 2), *d = x.row(r + 3);
    const T *e = x.row(r + 4), *f = x.row(r + 5), *g = x.row(r + 6), *h = x.row(r + 7);
#pragma omp simd
    for (std::int64_t j = begin; j < end; ++j)
      sum[j] += ((load(a[j]) + load(b[j])) + (load(c[j]) + load(d[j]))) +
                ((load(e[j]) + load(f[j])) + (load(g[j]) + load(h[j])));
  }
  for (; r < x.num_rows(); ++r) {
    const T* row = x.row(r);
#pragma omp simd
    for (std::int64_t j = begin; j < end; ++j) sum[j] += load(row[j]);
  }
}

}  // namespace

void HostKernels::add(const at::Tensor& x, const at::Tensor& bias, const at::Tensor& residual,
                      const DropoutSite& dropout, at::Tensor& y) const {
  with_element_type(x.scalar_type(), [&]<typename T>(T) {
    const Rows<T> from(x), residual_rows(residual), to(y);
    const T* biases = flat_data<T>(bias);
    const auto residual_row = [&](std::int64_t r) {
      return residual_rows.data == nullptr ? nullptr : residual_rows.row(r);
    };
    if (dropout.rate == 0) {
      for_each_row(from.num_rows(), from.width, [&](std::int64_t r) {
        add_row_with_operands<false, T>(from.row(r), biases, residual_row(r), nullptr, from.width, to.row(r));
      });
      return;
    }
    ensure_samples(dropout, from.num_rows());
    at::parallel_for(0, from.num_rows(), 16, [&](std::int64_t begin, std::int64_t end) {
      RowMask<Wide<T>> mask(dropout, from.width);
      for (std::int64_t r = begin; r < end; ++r)
        add_row_with_operands<true, T>(from.row(r), biases, residual_row(r), mask.of(r), from.width,
                                       to.row(r));
    });
  });
}

void HostKernels::dropout_backward(const at::Tensor& dy, const DropoutSite& dropout, at::Tensor& dx) const {
  add(dy, {}, {}, dropout, dx);  // dropout is linear, so the gradient is dy with the same mask
}

void HostKernels::add_rows(const at::Tensor& x, at::Tensor& sum) const {
  constexpr std::int64_t kMinColumns = 64;
  with_element_type(x.scalar_type(), [&]<typename T>(T) {
    const Rows<T> from(x);
    auto* sums = flat_data<Wide<T>>(sum);
    at::parallel_for(0, from.width, kMinColumns,
                     [&](std::int64_t begin, std::int64_t end) { add_columns(from, begin, end, sums); });
  });
}

}  // namespace optimus
