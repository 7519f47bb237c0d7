// The names of Gloo's transports that c10d's header mentions. Their implementation is in libtorch; this
// project neither creates nor calls them.
#pragma once

namespace gloo::transport {

class Device {
 public:
  virtual ~Device();
};

class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport
