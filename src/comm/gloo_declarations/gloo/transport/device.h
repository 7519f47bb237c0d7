// The names of Gloo's transports that c10d's header mentions. Their code is in libtorch; nothing here is ever made or called by us.
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
