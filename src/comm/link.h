// How the processes of a group exchange messages, as the algorithms (exchange.h) see it. c10d_link.h makes one of Gloo; tests may
// make one that fails.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>

namespace optimus {

// Why a message cannot be carried; thrown inside this folder only, whose functions turn it into a CommFailure.
struct LinkError {
  enum class Kind { closed, deadline, stopped };
  Kind kind = Kind::closed;
  int place = -1;  // of the member it was exchanged with
  std::string reason;
};

// A message under way. Its memory is the caller's. One thread waits, any may interrupt.
class WireMessage {
 public:
  virtual ~WireMessage() = default;
  // True: done. False: interrupted, it may be waited for again. Throws LinkError when the connection is closed. A time-out closes
  // all connections of the link (Gloo's rule), so patient callers give a long one and interrupt.
  virtual bool wait(std::chrono::milliseconds timeout) = 0;
  // Ends a wait under way, or else the next one.
  virtual void interrupt() = 0;
};

// Connections to all members of a group, which are known by their places in it. Between two members, messages of one tag arrive in
// the order of sending.
class Wire {
 public:
  virtual ~Wire() = default;
  virtual int place() const = 0;
  virtual int size() const = 0;
  // Rows of at least one element on processors; memory must not change until the transfer is done. Throws LinkError.
  virtual std::unique_ptr<WireMessage> send(int place, const at::Tensor& row, int tag) = 0;
  virtual std::unique_ptr<WireMessage> receive(int place, const at::Tensor& row, int tag) = 0;
  // Throws LinkError when the connection is known to be closed. Not for every message: each call leaves a few bytes behind.
  virtual void check(int place) = 0;
};

}  // namespace optimus
