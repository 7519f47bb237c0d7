// One GEMM in terms of cuBLASLt. Lists the algorithms that the library supports for this GEMM, times them on
// this device, and runs one of them. Allocates no device memory. Compiled in CUDA builds only. Read next:
// gemm_cuda.cpp, which expresses the GEMMs of a layer in these terms.
#pragma once

#ifdef OPTIMUS_CUDA
#include <cublasLt.h>

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace optimus {

// Operation that is applied to the result before it is written: adding a bias, or multiplying by the
// derivative of GELU (tanh).
enum class LtEpilogue { none, bias, gelu_gradient };

// D = epilogue(op(A) op(B) + C), column-major: op(A) is [m, k], op(B) [k, n], D and C [m, n]. LtShape
// contains everything that the choice of an algorithm depends on.
struct LtShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0, d_stride = 0, aux_stride = 0;  // between columns
  bool a_is_transposed = false, b_is_transposed = false;
  bool has_addend = false;  // C is added
  bool is_half = false;     // A and B are fp16; otherwise bf16
  bool is_wide = false;     // C and D are fp32; otherwise the type of A and B
  bool uses_fp8 = false;    // A and B are fp8: A in e4m3, B in e4m3 or, for gradients, e5m2; C and D as above
  bool b_is_gradient = false;
  LtEpilogue epilogue = LtEpilogue::none;
  auto operator<=>(const LtShape&) const = default;
};
std::string text(const LtShape& shape);  // a single word, used as a key in the cache file

struct LtOperands {
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  // Operand of the epilogue, either the bias [m] or the input of GELU [m, n]. Null without an epilogue.
  const void* extra = nullptr;
  // Factors by which the values of A and B are multiplied, as one fp32 number each on the device. Used only
  // in fp8.
  const void *a_scale = nullptr, *b_scale = nullptr;
};

// A cuBLASLt algorithm, and how the operands are passed to it. They are passed either unchanged, or
// transposed with D declared row-major. Both forms use the same memory but select different kernels.
struct LtAlgorithm {
  bool is_transposed = false;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
};

constexpr std::size_t kLtWorkspace = std::size_t{64} << 20;

class LtGemm {
 public:
  explicit LtGemm(const LtShape& shape);
  ~LtGemm();
  LtGemm(const LtGemm&) = delete;
  LtGemm& operator=(const LtGemm&) = delete;

  // Returns the algorithms that the library supports for this GEMM, with its preferred algorithm first. Empty
  // if there are none.
  std::vector<LtAlgorithm> supported_algorithms(cublasLtHandle_t handle) const;
  // Returns whether the library accepts an algorithm that was read from a file, and sets its workspace
  // size.
  bool accepts(cublasLtHandle_t handle, LtAlgorithm& algorithm) const;
  // Starts the GEMM on `stream`. Returns false if the library does not accept the GEMM. `workspace` has
  // kLtWorkspace bytes.
  bool run(cublasLtHandle_t handle, const LtAlgorithm& algorithm, const LtOperands& operands, void* workspace,
           cudaStream_t stream) const;

 private:
  struct Description;
  LtShape shape_;
  // [0]: operands unchanged; [1]: operands transposed (may be null)
  std::array<std::unique_ptr<Description>, 2> descriptions_;
};

// Times the algorithms in turn on these operands and returns the fastest. D is overwritten and must not
// alias C. `algorithms` must not be empty.
LtAlgorithm select_fastest(const LtGemm& gemm, std::vector<LtAlgorithm> algorithms, cublasLtHandle_t handle,
                           const LtOperands& operands, void* workspace, cudaStream_t stream);

}  // namespace optimus
#endif
