// Message transport between the processes of a group, on which the algorithms of exchange.h are built.
// c10d_link.h implements it with Gloo; tests may use an implementation that fails on purpose.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <memory>
#include <string>

namespace optimus {

// Why a message could not be transferred. Thrown only inside this folder; the public functions turn it into
// a CommFailure.
struct LinkError {
  enum class Kind { closed, deadline, stopped };
  Kind kind = Kind::closed;
  int member_index = -1;  // group index of the peer
  std::string reason;
};

// A message in flight. The caller owns its memory. One thread waits; any thread may interrupt.
class LinkMessage {
 public:
  virtual ~LinkMessage() = default;
  // Returns true when the message has been transferred. Returns false when interrupted; the caller may then
  // wait again. Throws LinkError if the connection is closed. A timeout closes all connections of the link
  // (Gloo's behaviour), so callers pass a long timeout and use interrupt().
  virtual bool wait(std::chrono::milliseconds timeout) = 0;
  // Ends the current wait, or else the next one.
  virtual void interrupt() = 0;
};

// Connections to all members of a group. Members are addressed by their index in the group. Between two
// members, messages with the same tag arrive in the order in which they were sent.
class GroupLink {
 public:
  virtual ~GroupLink() = default;
  virtual int group_index() const = 0;
  virtual int size() const = 0;
  // `row` has at least one element and is in host memory. It must not change until the transfer is done.
  // Throws LinkError.
  virtual std::unique_ptr<LinkMessage> send(int member_index, const at::Tensor& row, int tag) = 0;
  virtual std::unique_ptr<LinkMessage> receive(int member_index, const at::Tensor& row, int tag) = 0;
  // Throws LinkError if the connection is known to be closed. Should not be called for every message, because
  // each call leaks a few bytes.
  virtual void check(int member_index) = 0;
};

}  // namespace optimus
