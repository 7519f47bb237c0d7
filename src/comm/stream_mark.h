// A point in the order of work on a device that other streams can wait for (a CUDA event). On CPUs there is
// nothing to wait for, because work is done when the call returns.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace optimus {

class StreamMark {
 public:
  StreamMark() = default;  // already passed
  // A mark after all work that has been submitted to the device's current stream so far.
  static StreamMark of(at::Device device);
  // Work submitted later to the device's current stream runs after the mark; the calling thread does not
  // wait.
  void await(at::Device device) const;
  bool is_passed() const { return event_ == nullptr || event_->query(); }

 private:
  std::shared_ptr<c10::Event> event_;  // shared, because several ranks may wait for one mark
};

}  // namespace optimus
