// A point in the order of work on a device, which other streams can wait for. On processors there is nothing to wait for: work is
// done when the call returns.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <memory>

namespace optimus {

class StreamMark {
 public:
  StreamMark() = default;  // passed already
  // Behind all that the current stream of the device was given so far.
  static StreamMark of(at::Device device);
  // The current stream of the device goes on only behind the mark; the calling thread does not wait.
  void await(at::Device device) const;
  bool is_passed() const { return event_ == nullptr || event_->query(); }

 private:
  std::shared_ptr<c10::Event> event_;  // shared: several ranks wait for one mark, each when it comes to it
};

}  // namespace optimus
