// Makes waits inside Gloo look up now and then: whether somebody gave up, whether the deadline passed, whether the other side is
// still there. Gloo has no wait that can be told to end by itself without closing the connections.
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

  // All waits look up at once. Any thread.
  void interrupt_all();

  struct Limits {
    const Deadline& deadline;
    std::function<std::optional<std::string>()> stop;  // a reason to end, from whoever has one
  };
  // Until the transfer with the member at `place` is done. Throws LinkError: closed, deadline or stopped.
  void wait(WireMessage& transfer, Wire& link, int place, const Limits& limits);

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<WireMessage*> waited_for_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace optimus
