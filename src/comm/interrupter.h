// Periodically interrupts waits inside Gloo to check whether the rank has to stop, the deadline has passed,
// or the connection was closed. Gloo has no wait that can be cancelled without closing the connections.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/deadline.h"
#include "comm/link.h"

namespace optimus {

class Interrupter {
 public:
  Interrupter();
  ~Interrupter();
  Interrupter(const Interrupter&) = delete;

  // Makes all waits check their limits now. Thread-safe.
  void interrupt_all();

  struct Limits {
    const Deadline& deadline;
    std::function<std::optional<std::string>()> stop;  // returns a reason to stop, if there is one
  };
  // Returns when the transfer with the member at `member_index` is done. Throws LinkError if the connection
  // is closed, the deadline has passed or the wait was stopped.
  void wait(LinkMessage& transfer, GroupLink& link, int member_index, const Limits& limits);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<LinkMessage*> waited_for_;
  bool is_stopping_ = false;
  std::thread thread_;
};

}  // namespace optimus
