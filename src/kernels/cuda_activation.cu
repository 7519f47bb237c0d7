// Activation functions on CUDA, plain and gated, with their gradients. Each needs one pass, in which a thread
// processes one pack of adjacent elements.
#include "kernels/cuda_activation_functions.cuh"

namespace optimus::cuda {
namespace {

template <typename Function, typename T, int kPack>
__global__ void __launch_bounds__(256)
    forward_kernel(RowsOf<T> x, RowsOf<T> gate, RowsOf<T> y, std::int64_t num_rows, std::int64_t num_packs) {
  for_each_position(num_rows, num_packs, [&](std::int64_t row, std::int64_t column) {
    Values<T, kPack> in, gates, out;
    in.load(x.row(row) + column * kPack);
    if (gate.data != nullptr) gates.load(gate.row(row) + column * kPack);
#pragma unroll
    for (int i = 0; i < kPack; ++i)
      out.at[i] =
          gate.data == nullptr ? Function::at(in.at[i]).value : Function::at(gates.at[i]).value * in.at[i];
    out.store(y.row(row) + column * kPack);
  });
}

template <typename Function, typename T, int kPack>
__global__ void __launch_bounds__(256)
    backward_kernel(RowsOf<T> dy, RowsOf<T> x, RowsOf<T> gate, RowsOf<T> dx, RowsOf<T> d_gate,
                    std::int64_t num_rows, std::int64_t num_packs) {
  for_each_position(num_rows, num_packs, [&](std::int64_t row, std::int64_t column) {
    Values<T, kPack> upstream, in;
    upstream.load(dy.row(row) + column * kPack);
    in.load(x.row(row) + column * kPack);
    if (gate.data == nullptr) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) in.at[i] = upstream.at[i] * Function::at(in.at[i]).derivative;
      in.store(dx.row(row) + column * kPack);
      return;
    }
    Values<T, kPack> gates;
    gates.load(gate.row(row) + column * kPack);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const ValueAndDerivative<T> result = Function::at(gates.at[i]);
      gates.at[i] = upstream.at[i] * in.at[i] * result.derivative;
      upstream.at[i] *= result.value;
    }
    upstream.store(dx.row(row) + column * kPack);
    gates.store(d_gate.row(row) + column * kPack);
  });
}

// Calls visit(T{}, pack size, Function{}) with the element type and the function of the task.
template <typename Visit>
void with_pack_and_function(const ActivationTask& task, Visit visit) {
  const bool is_packed =
      all_have_packs(size_of(task.element), task.x, task.gate, task.y, task.dy, task.dx, task.d_gate);
  with_pack(task.element, is_packed, [&](auto zero, auto pack) {
    with_function<decltype(zero)>(task.kind, [&](auto function) { visit(zero, pack, function); });
  });
}

}  // namespace

void activation(const Queue& queue, const ActivationTask& task) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  with_pack_and_function(task, [&](auto zero, auto pack, auto function) {
    using T = decltype(zero);
    const std::int64_t num_packs = task.x.width / pack();
    const PlaneShape shape = plane_shape(task.x.num_rows, num_packs);
    forward_kernel<decltype(function), T, pack()><<<shape.blocks, shape.threads, 0, queue.stream>>>(
        RowsOf<T>(task.x), RowsOf<T>(task.gate), RowsOf<T>(task.y), task.x.num_rows, num_packs);
  });
}

void activation_backward(const Queue& queue, const ActivationTask& task) {
  if (task.x.num_rows == 0 || task.x.width == 0) return;
  with_pack_and_function(task, [&](auto zero, auto pack, auto function) {
    using T = decltype(zero);
    const std::int64_t num_packs = task.x.width / pack();
    const PlaneShape shape = plane_shape(task.x.num_rows, num_packs);
    backward_kernel<decltype(function), T, pack()><<<shape.blocks, shape.threads, 0, queue.stream>>>(
        RowsOf<T>(task.dy), RowsOf<T>(task.x), RowsOf<T>(task.gate), RowsOf<T>(task.dx),
        RowsOf<T>(task.d_gate), task.x.num_rows, num_packs);
  });
}

}  // namespace optimus::cuda
