// Products by cuBLASLt, each shape by the algorithm that was fastest here: measured at its first use and kept in a file for the next
// run. Compiled where CUDA is. Read next: lt_product.h; products_cuda.cpp and fp8_products_cuda.cpp, who ask.
#pragma once

#ifdef OPTIMUS_CUDA
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>

#include "base/file.h"
#include "engine/lt_product.h"

namespace optimus {

class LtChoices {
 public:
  // record: the file; empty: nothing is kept.
  LtChoices(at::Device device, const Path& record);
  ~LtChoices();

  // On the current stream. Whether it was started: false where cuBLASLt cannot.
  bool run(const LtShape& shape, const LtOperands& operands);
  std::int64_t bytes() const { return static_cast<std::int64_t>(kLtWorkspace); }

 private:
  struct Choice {
    std::unique_ptr<LtProduct> product;  // null: cuBLASLt cannot do it
    LtAlgorithm algorithm;
  };
  class Record;

  Choice choose(const LtShape& shape, const LtOperands& operands, cublasLtHandle_t handle,
                cudaStream_t stream);
  at::Tensor room_for(const LtShape& shape) const;

  const at::Device device_;
  std::unique_ptr<Record> record_;
  const at::Tensor workspace_;
  std::map<LtShape, Choice> choices_;
};

// Rows of 16-byte units from a 16-byte address: what the library's fast kernels want.
inline bool is_aligned(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  const std::int64_t unit = 16 / static_cast<std::int64_t>(tensor.element_size());
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 16 == 0 &&
         (tensor.dim() == 1 ||
          (tensor.stride(1) == 1 && tensor.stride(0) % unit == 0 && tensor.size(1) % unit == 0));
}
template <typename... More>
bool all_aligned(const More&... tensors) {
  return (is_aligned(tensors) && ...);
}

}  // namespace optimus
#endif
