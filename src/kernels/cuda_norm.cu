// See cuda_norm.cuh.
#include "kernels/cuda_norm.cuh"

namespace optimus::cuda {
namespace {

template <typename T>
struct ElementRows {
  RowsOf<T> y;
  template <int kPack>
  __device__ __forceinline__ void store(std::int64_t row, std::int64_t column,
                                        const Values<T, kPack>& pack) const {
    pack.store(y.row(row) + column);
  }
  template <int kThreads>
  __device__ __forceinline__ void end() const {}
};

}  // namespace

void norm(const Queue& queue, const NormTask& task) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  const bool is_packed = all_have_packs(size_of(task.element), task.x, task.y) &&
                         is_aligned(task.weight, 16) && is_aligned(task.bias, 16);
  with_pack(task.element, is_packed, [&](auto zero, auto pack) {
    using T = decltype(zero);
    launch_norm_for_width<T, pack()>(queue, norm_arguments<T, pack()>(task), task.x.width,
                                     ElementRows<T>{RowsOf<T>(task.y)});
  });
}

}  // namespace optimus::cuda
