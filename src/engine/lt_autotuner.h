// GEMMs by cuBLASLt. Each shape uses the algorithm that was fastest on this device. Algorithms are timed at
// first use, and the fastest is stored in a file for the next run. Compiled in CUDA builds only. Used by
// gemm_cuda.cpp and fp8_gemm_cuda.cpp. Read next: lt_gemm.h.
#pragma once

#ifdef OPTIMUS_CUDA
#include <ATen/core/Tensor.h>

#include <map>
#include <memory>

#include "base/file.h"
#include "engine/lt_gemm.h"

namespace optimus {

class LtAutotuner {
 public:
  // `algorithm_path` is the cache file for the fastest algorithms. If empty, they are not cached.
  LtAutotuner(at::Device device, const Path& algorithm_path);
  ~LtAutotuner();

  // Starts the GEMM on the current stream. Returns false if cuBLASLt does not support it.
  bool run(const LtShape& shape, const LtOperands& operands);
  std::int64_t bytes() const { return static_cast<std::int64_t>(kLtWorkspace); }

 private:
  struct TunedGemm {
    std::unique_ptr<LtGemm> gemm;  // null if cuBLASLt does not support the shape
    LtAlgorithm algorithm;
  };
  class AlgorithmFile;

  TunedGemm choose(const LtShape& shape, const LtOperands& operands, cublasLtHandle_t handle,
                   cudaStream_t stream);
  at::Tensor scratch_output_for(const LtShape& shape) const;

  const at::Device device_;
  std::unique_ptr<AlgorithmFile> algorithm_file_;
  const at::Tensor workspace_;
  std::map<LtShape, TunedGemm> tuned_gemms_;
};

// Returns whether the address and the size of every row are multiples of 16 bytes, as the library's fast
// kernels require. True for an undefined tensor.
inline bool is_aligned(const at::Tensor& tensor) {
  if (!tensor.defined()) return true;
  const std::int64_t unit = 16 / static_cast<std::int64_t>(tensor.element_size());
  return reinterpret_cast<std::uintptr_t>(tensor.data_ptr()) % 16 == 0 &&
         (tensor.dim() == 1 ||
          (tensor.stride(1) == 1 && tensor.stride(0) % unit == 0 && tensor.size(1) % unit == 0));
}
template <typename... Tensors>
bool all_aligned(const Tensors&... tensors) {
  return (is_aligned(tensors) && ...);
}

}  // namespace optimus
#endif
