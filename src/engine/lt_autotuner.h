// GEMMs by cuBLASLt. For each shape it uses the algorithm that was fastest on this device: timed at first
// use, and stored in a file for the next run. Compiled in CUDA builds only. Read next: lt_gemm.h; the
// users are gemm_cuda.cpp and fp8_gemm_cuda.cpp.
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
  // `algorithm_path` is the file that stores the fastest algorithms; empty if they are not stored.
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

// Whether every row starts at a multiple of 16 bytes and has a size that is a multiple of 16 bytes, as the
// library's fast kernels require. True for an undefined tensor.
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
