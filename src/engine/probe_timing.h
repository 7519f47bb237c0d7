// How the probe times kernels: again and again, on operands that change, in the state that a device has during a training.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <vector>

#include "engine/device.h"

namespace optimus {

// Operands one behind the other in a buffer that no cache holds, from its start again when it is used up. Views are kept: making
// them would take longer than a small kernel.
class Ring {
 public:
  explicit Ring(at::Tensor buffer) : buffer_(std::move(buffer)) {}
  at::Tensor next(std::int64_t rows, std::int64_t columns);

 private:
  at::Tensor buffer_;  // flat
  std::int64_t at_ = 0;
  std::size_t num_since_start_ = 0;
  std::map<std::array<std::int64_t, 3>, at::Tensor> views_;  // by place and size
};

void wait_for(at::Device device);

// Of one or more.
double median(std::vector<double> all);

// Median seconds of one call, after one that is not counted; waits for the device.
double seconds_of(at::Device device, const std::function<void()>& call);

// The same for kernels. On a GPU short ones are called from a recording, as in a training (step_graph.h): launched by the host they
// would take what a launch takes. The call waits for nothing and uses the same memory each time.
double seconds_of_kernel(at::Device device, const std::function<void()>& call);

// The same for products. A GPU that only multiplies reaches its limit of power and slows down; in a training it copies and adds
// for a third of the time. So here too, and that part is not counted. `idle`: a large buffer for it, of any content.
double seconds_of_product(at::Device device, const at::Tensor& idle, const std::function<void()>& call);

}  // namespace optimus
