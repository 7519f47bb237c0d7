// Converts tensors to the arguments of the cuda_*.cu kernels, and launches kernels on the current stream of a
// tensor's device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <type_traits>

#include "base/error.h"
#include "kernels/cuda_launch.h"

namespace optimus {

inline cuda::Element element_of(const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  if (type == at::kBFloat16) return cuda::Element::bf16;
  if (type == at::kHalf) return cuda::Element::fp16;
  if (type == at::kFloat) return cuda::Element::fp32;
  ensure(type == at::kDouble, "kernels do not support element type {}", c10::toString(type));
  return cuda::Element::fp64;
}
inline at::ScalarType wide_type(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Returns the rows of a tensor, which must have element type `type`. An undefined tensor has no rows.
inline cuda::Rows rows_of(const at::Tensor& tensor, at::ScalarType type) {
  if (!tensor.defined()) return {};
  ensure(tensor.scalar_type() == type, "expected a tensor of element type {}, got {}", c10::toString(type),
         c10::toString(tensor.scalar_type()));
  ensure(tensor.dim() == 2 || tensor.dim() == 3, "expected a tensor with 2 or 3 dims, got {}", tensor.dim());
  ensure(tensor.size(-1) <= 1 || tensor.stride(-1) == 1,
         "expected stride 1 between the elements of a row, got {}", tensor.stride(-1));
  cuda::Rows rows{.data = tensor.data_ptr(),
                  .num_rows = tensor.size(0),
                  .num_inner = 1,
                  .width = tensor.size(-1),
                  .outer_stride = tensor.stride(0),
                  .inner_stride = 0};
  if (tensor.dim() == 3 && tensor.size(1) > 0)
    rows.num_inner = tensor.size(1), rows.inner_stride = tensor.stride(1), rows.num_rows *= tensor.size(1);
  ensure(rows.num_rows < (std::int64_t{1} << 31), "expected fewer than 2^31 rows per call, got {}",
         rows.num_rows);
  return rows;
}
inline cuda::Rows rows_of(const at::Tensor& tensor) {
  return tensor.defined() ? rows_of(tensor, tensor.scalar_type()) : cuda::Rows{};
}

// Returns the data of a contiguous vector, or null if the tensor is undefined.
inline void* flat_data(const at::Tensor& tensor, at::ScalarType type) {
  if (!tensor.defined()) return nullptr;
  ensure(tensor.is_contiguous() && tensor.scalar_type() == type,
         "expected a contiguous vector of element type {}, got {}", c10::toString(type),
         c10::toString(tensor.scalar_type()));
  return tensor.data_ptr();
}

inline int num_multiprocessors_of(at::Device device) {
  int count = 0;
  C10_CUDA_CHECK(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device.index()));
  return count;
}

// Makes the device of a tensor current while kernels are launched on its stream.
class Launch {
 public:
  explicit Launch(const at::Tensor& tensor)
      : guard_(tensor.device()),
        queue_{.stream = c10::cuda::getCurrentCUDAStream(tensor.device().index()).stream(),
               .num_multiprocessors = num_multiprocessors_of(tensor.device())} {}
  const cuda::Queue& queue() const { return queue_; }
  template <typename... Args>
  void operator()(void (*kernel)(const cuda::Queue&, Args...), std::type_identity_t<Args>... args) const {
    kernel(queue_, args...);
    C10_CUDA_CHECK(cudaGetLastError());
  }

 private:
  c10::cuda::CUDAGuard guard_;
  cuda::Queue queue_;
};

}  // namespace optimus
