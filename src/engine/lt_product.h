// One product as cuBLASLt sees it: which algorithms the library offers for it, how long each takes here, and running it.
// Nothing here allocates on the device. Compiled where CUDA is. Read next: products_cuda.cpp, which says what a layer's products
// are in these terms.
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

// What happens to the sums before they are written: a bias is added, or they go through the gradient of GELU (tanh).
enum class LtEpilogue { none, bias, gelu_gradient };

// D = epilogue(op(A) op(B) + C), column-major: op(A) is [m, k], op(B) [k, n], D and C [m, n]. All that the choice of an algorithm
// depends on.
struct LtShape {
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t a_stride = 0, b_stride = 0, c_stride = 0, d_stride = 0, aux_stride = 0;  // between columns
  bool a_is_transposed = false, b_is_transposed = false;
  bool has_addend = false;  // C; without one the sums stand alone
  bool is_half = false;     // A and B are fp16, else bf16
  bool is_wide = false;     // C and D are fp32, else as A and B
  bool is_narrow = false;   // A and B are in 8 bits: A in e4m3, B too or a gradient's e5m2; C and D as else
  bool b_is_gradient = false;
  LtEpilogue epilogue = LtEpilogue::none;
  auto operator<=>(const LtShape&) const = default;
};
std::string text(const LtShape& shape);  // one word, for files

struct LtOperands {
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  const void* extra = nullptr;  // of the epilogue: the bias [m], or what GELU was applied to, [m, n]
  // In 8 bits: what products are multiplied by, one fp32 number each, on the device.
  const void *a_scale = nullptr, *b_scale = nullptr;
};

// An algorithm, as the library keeps it, and which way round the operands are handed over: as they are, or transposed with D
// declared row-major, which is the same memory and another kernel.
struct LtAlgorithm {
  bool is_turned = false;
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
};

constexpr std::size_t kLtWorkspace = std::size_t{64} << 20;

class LtProduct {
 public:
  explicit LtProduct(const LtShape& shape);
  ~LtProduct();
  LtProduct(const LtProduct&) = delete;
  LtProduct& operator=(const LtProduct&) = delete;

  // What the library offers, its own favourite first; empty when it cannot do this product.
  std::vector<LtAlgorithm> offers(cublasLtHandle_t handle) const;
  // An algorithm that was kept in a file; whether the library takes it.
  bool accepts(cublasLtHandle_t handle, LtAlgorithm& algorithm) const;
  // Whether it was started. workspace: kLtWorkspace bytes.
  bool run(cublasLtHandle_t handle, const LtAlgorithm& algorithm, const LtOperands& operands, void* workspace,
           cudaStream_t stream) const;

 private:
  struct Description;
  LtShape shape_;
  std::array<std::unique_ptr<Description>, 2> ways_;  // as they are, turned (may be null)
};

// The fastest of some algorithms, timed on these operands in turns; D is written, and must not be C. An empty list has none.
LtAlgorithm fastest(const LtProduct& product, std::vector<LtAlgorithm> algorithms, cublasLtHandle_t handle,
                    const LtOperands& operands, void* workspace, cudaStream_t stream);

}  // namespace optimus
#endif
