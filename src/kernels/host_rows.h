// The view of tensors that the loops of HostKernels use: rows of contiguous elements, dispatch over element
// types, and distribution of rows over threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "base/error.h"
#include "kernels/host_math.h"

namespace optimus {

// A [rows, width] or [rows, heads, width] tensor as rows * heads rows. Does not own the data.
template <typename T>
struct Rows {
  T* data = nullptr;
  std::int64_t num_outer = 0, num_inner = 1, width = 0;
  std::int64_t outer_stride = 0, inner_stride = 0;

  Rows() = default;  // for an undefined tensor, with null data
  explicit Rows(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    ensure(tensor.dim() == 2 || tensor.dim() == 3, "expected a tensor with 2 or 3 dims, got {}",
           tensor.dim());
    ensure(tensor.size(-1) <= 1 || tensor.stride(-1) == 1,
           "expected stride 1 between the elements of a row, got {}", tensor.stride(-1));
    data = tensor.data_ptr<T>();
    num_outer = tensor.size(0), outer_stride = tensor.stride(0), width = tensor.size(-1);
    if (tensor.dim() == 3) num_inner = tensor.size(1), inner_stride = tensor.stride(1);
  }
  std::int64_t num_rows() const { return num_outer * num_inner; }
  T* row(std::int64_t index) const {
    if (num_inner == 1) return data + index * outer_stride;
    return data + index / num_inner * outer_stride + index % num_inner * inner_stride;
  }
};

// Returns the data of a contiguous vector, or null if the tensor is undefined.
template <typename T>
T* flat_data(const at::Tensor& tensor) {
  if (!tensor.defined()) return nullptr;
  ensure(tensor.is_contiguous(), "a vector or flat buffer must be contiguous");
  return tensor.data_ptr<T>();
}

// Calls visit(T{}) with T the element type.
template <typename Visit>
void with_element_type(at::ScalarType type, Visit visit) {
  if (type == at::kFloat) return visit(float{});
  if (type == at::kBFloat16) return visit(c10::BFloat16{});
  if (type == at::kHalf) return visit(c10::Half{});
  ensure(type == at::kDouble, "kernels do not support element type {}", c10::toString(type));
  visit(double{});
}

// Calls visit(row) for all rows, on all threads. Small inputs use one thread, because waking a thread costs
// microseconds.
template <typename Visit>
void for_each_row(std::int64_t num_rows, std::int64_t width, Visit visit) {
  constexpr std::int64_t kMinElementsPerThread = 16384;
  const std::int64_t grain =
      std::max<std::int64_t>(1, kMinElementsPerThread / std::max<std::int64_t>(1, width));
  at::parallel_for(0, num_rows, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) visit(row);
  });
}

}  // namespace optimus
