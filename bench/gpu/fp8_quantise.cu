// Compiles src/kernels/cuda_fp8.cu for fp8_products.cu. A separate file is needed because everything that
// includes gemm_product.cuh is C++17 (nvcc 13.0 fails to compile it as C++20).
#include "../../src/kernels/cuda_fp8.cu"

void quantize_matrix(void* from, void* to, void* transposed, long rows, long width, bool is_gradient,
                     const float* scale, unsigned* maximum) {
  using namespace optimus::cuda;
  QuantizeTask task;
  task.format = is_gradient ? Fp8Format::e5m2 : Fp8Format::e4m3;
  task.x = {from, rows, 1, width, width, 0};
  task.y = to, task.transposed = transposed, task.scale = scale, task.maximum = maximum;
  quantize({nullptr, 132}, task);
}
