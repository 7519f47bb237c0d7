// Timing of kernels for the probe: repeated calls on changing operands, with the device in the state that it
// has during training.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <vector>

#include "engine/device.h"

namespace optimus {

// Returns consecutive operands from a buffer larger than any cache, starting over at its end. Views are
// cached, because creating one takes longer than a small kernel.
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

// Median seconds of one call, after one uncounted call. Synchronizes with the device.
double seconds_of(at::Device device, const std::function<void()>& call);

// As seconds_of, for kernels. On a GPU, short kernels are replayed from a CUDA graph, as in training
// (step_graph.h); launched individually, they would take the time of a launch. The call must not wait for
// anything and must use the same memory each time.
double seconds_of_kernel(at::Device device, const std::function<void()>& call);

// As seconds_of_kernel, for GEMMs. A GPU that runs only GEMMs reaches its power limit and reduces its clock;
// in training it spends about a third of the time on copies and additions. The measurement therefore copies
// between the GEMMs, without counting that time. `copy_buffer` is a large buffer for these copies, with any
// content.
double seconds_of_gemm(at::Device device, const at::Tensor& copy_buffer, const std::function<void()>& call);

}  // namespace optimus
