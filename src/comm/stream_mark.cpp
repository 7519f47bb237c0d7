// See stream_mark.h.
#include "comm/stream_mark.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace optimus {

StreamMark StreamMark::of(at::Device device) {
  StreamMark mark;
  if (device.is_cpu()) return mark;
  mark.event_ = std::make_shared<c10::Event>(device.type());
  mark.event_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return mark;
}

void StreamMark::await(at::Device device) const {
  if (event_ == nullptr || device.is_cpu()) return;
  event_->block(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

}  // namespace optimus
