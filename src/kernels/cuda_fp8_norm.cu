// Norms with fp8 output: the input of the next GEMM is never stored in 16 bits.
#include "kernels/cuda_fp8.cuh"
#include "kernels/cuda_norm.cuh"

namespace optimus::cuda {
namespace {

using Number = __nv_bfloat16;

struct NarrowRows {
  std::uint8_t* y;
  std::int64_t width;
  const float* scale;
  std::uint32_t* maximum;
  std::uint32_t largest = 0;

  __device__ __forceinline__ void store(std::int64_t row, std::int64_t column,
                                        const Values<Number, 8>& pack) {
    const Eight eight[1] = {{make_uint4(pair_of(pack.at[0], pack.at[1]), pair_of(pack.at[2], pack.at[3]),
                                        pair_of(pack.at[4], pack.at[5]), pair_of(pack.at[6], pack.at[7]))}};
    largest = larger_pair(largest, eight[0]);
    uint2 out[1];
    narrow_all<Number, Narrow::e4m3>(eight, is_all_finite<Number>(largest), *scale, out);
    *reinterpret_cast<uint2*>(y + row * width + column) = out[0];
  }
  // The number of rows is a multiple of 16, so every thread of a block had one.
  template <int kThreads>
  __device__ __forceinline__ void end() const {
    keep_largest<Number, kThreads>(largest, maximum);
  }
};

}  // namespace

void norm_to_fp8(const Queue& queue, const NormTask& task, const NarrowRoom& room) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  launch_norm_for_width<Number, 8>(
      queue, norm_arguments<Number, 8>(task), task.x.width,
      NarrowRows{static_cast<std::uint8_t*>(room.y), task.x.width, room.scale, room.maximum});
}

}  // namespace optimus::cuda
