// Random tensors for kernel tests, and the tolerance of each element type.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "base/random.h"

namespace optimus::test {

inline const std::vector<at::ScalarType> kTypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

inline at::ScalarType wide_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}

// Normally distributed numbers, different for each name.
inline at::Tensor random_tensor(const std::string& name, std::vector<std::int64_t> sizes,
                                at::ScalarType type) {
  at::Tensor values = at::empty(sizes, at::kDouble);
  const std::int64_t count = values.numel();
  fill_normal(RandomKey(7).derive(name), Shape{count}, Box{{0, count}},
              std::span(values.data_ptr<double>(), static_cast<std::size_t>(count)));
  return values.to(type);
}

// As above, but its rows are columns of a wider buffer.
inline at::Tensor random_rows(const std::string& name, std::int64_t rows, std::int64_t width,
                              at::ScalarType type) {
  return random_tensor(name, {rows, width + 5}, type).narrow(1, 3, width);
}

inline at::Tensor strided_like(const at::Tensor& like) {
  return random_rows("garbage", like.size(0), like.size(1), like.scalar_type());
}

inline at::Tensor in_double(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.to(at::kDouble, false, true) : tensor;
}

// The largest difference relative to the largest value.
inline double difference(const at::Tensor& got, const at::Tensor& expected) {
  if (got.numel() == 0) return 0;
  const at::Tensor a = got.to(at::kDouble), b = expected.to(at::kDouble);
  const double scale = b.abs().max().item<double>();
  return (a - b).abs().max().item<double>() / (scale > 0 ? scale : 1);
}

// Results of the element type are rounded once at the end, from arithmetic in the wider type: half a unit in
// the last place (2^-9 for bf16 with 8 significant bits, 2^-12 for fp16 with 11), doubled for a tie that
// falls the other way. fp32: sums of several hundred terms of 2^-24 each and an exponential of 2 units.
inline double tolerance(at::ScalarType type) {
  if (type == at::kDouble) return 1e-13;
  if (type == at::kFloat) return 2e-6;
  return type == at::kBFloat16 ? std::ldexp(1, -8) : std::ldexp(1, -11);
}
// Accumulators and statistics are never rounded to the element type.
inline double wide_tolerance(at::ScalarType type) { return type == at::kDouble ? 1e-13 : 3e-6; }

#define EXPECT_CLOSE(got, expected, limit) EXPECT_LE(::optimus::test::difference(got, expected), limit)

}  // namespace optimus::test
