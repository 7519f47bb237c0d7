// Norms with fp8 output, so that the input of the next GEMM is never stored in 16 bits.
#include "kernels/cuda_fp8.cuh"
#include "kernels/cuda_norm.cuh"

namespace optimus::cuda {
namespace {

using Number = __nv_bfloat16;

struct Fp8Rows {
  std::uint8_t* y;
  std::int64_t width;
  const float* scale;
  std::uint32_t* maximum;
  std::uint32_t largest = 0;

  __device__ __forceinline__ void store(std::int64_t row, std::int64_t column,
                                        const Values<Number, 8>& pack) {
    const Pack8 eight[1] = {
        {make_uint4(pack_bf16_pair(pack.at[0], pack.at[1]), pack_bf16_pair(pack.at[2], pack.at[3]),
                    pack_bf16_pair(pack.at[4], pack.at[5]), pack_bf16_pair(pack.at[6], pack.at[7]))}};
    largest = max_magnitudes(largest, eight[0]);
    uint2 out[1];
    quantize_packs<Number, Fp8Format::e4m3>(eight, is_all_finite<Number>(largest), *scale, out);
    *reinterpret_cast<uint2*>(y + row * width + column) = out[0];
  }
  // The number of rows is a multiple of 16, so every thread of the block has processed a row and reaches this
  // call.
  template <int kThreads>
  __device__ __forceinline__ void end() const {
    update_maximum<Number, kThreads>(largest, maximum);
  }
};

}  // namespace

void norm_to_fp8(const Queue& queue, const NormTask& task, const Fp8Pointers& output) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  launch_norm_for_width<Number, 8>(
      queue, norm_arguments<Number, 8>(task), task.x.width,
      Fp8Rows{static_cast<std::uint8_t*>(output.y), task.x.width, output.scale, output.maximum});
}

}  // namespace optimus::cuda
