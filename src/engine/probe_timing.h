// Times kernels for the probe. Calls are repeated on changing operands, with the device in the same state as
// during training.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <vector>

#include "engine/device.h"

namespace optimus {

// Returns consecutive operands from a buffer that is larger than any cache, and starts over at the end of the
// buffer. Views are cached, because creating a view takes longer than running a small kernel.
class OperandRing {
 public:
  explicit OperandRing(at::Tensor buffer) : buffer_(std::move(buffer)) {}
  at::Tensor next(std::int64_t rows, std::int64_t columns);

 private:
  at::Tensor buffer_;  // flat
  std::int64_t next_index_ = 0;
  std::size_t num_since_start_ = 0;
  std::map<std::array<std::int64_t, 3>, at::Tensor> views_;  // by offset and size
};

void wait_for(at::Device device);

// `values` must not be empty.
double median(std::vector<double> values);

// Returns the median seconds of one call, after one call that is not timed. Synchronizes with the device.
double seconds_of(at::Device device, const std::function<void()>& call);

// Like seconds_of(), but for kernels. On a GPU, short kernels are replayed from a CUDA graph, as in training
// (step_graph.h), because individual launches would take longer than the kernels. The call must not wait for
// anything and must use the same memory each time.
double seconds_of_kernel(at::Device device, const std::function<void()>& call);

// Like seconds_of_kernel(), but for GEMMs. A GPU that runs only GEMMs reaches its power limit and reduces its
// clock. In training, it spends about a third of the time on copies and additions. The measurement therefore
// copies between the GEMMs, without counting the time of the copies. `copy_buffer` is a large buffer with any
// content for these copies.
double seconds_of_gemm(at::Device device, const at::Tensor& copy_buffer, const std::function<void()>& call);

}  // namespace optimus
