// Declares the Gloo transports that c10d's header mentions. libtorch implements them; this project neither
// creates nor calls them.
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
