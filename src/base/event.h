// EventSink: the interface through which lower-level code reports progress and warnings without knowing the
// receiver.
//
// A function that runs for a long time or may emit warnings takes an EventSink&. The command line shows
// events as a progress line and warnings; a run writes them to its logs; a test collects them. report() may
// be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

namespace optimus {

// The progress of a long activity: `num_done` of `total` units are done. `total` is 0 if unknown.
struct Progress {
  std::string activity;  // "tokenizing"
  std::int64_t num_done = 0, total = 0;
  std::string unit;  // "bytes"
};

// A warning for the user, in one line. The work continues.
struct Warning {
  std::string text;
};

using Event = std::variant<Progress, Warning>;

// Thrown by report() when the user interrupts the work, to cancel preparations such as tokenizing. The caller
// of report() releases its resources and lets the exception propagate. A running training returns a value
// instead: see report_and_check_interrupt() and base/stop_token.h.
struct Interrupted {};

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void report(const Event& event) = 0;
};

// Reports an event. Returns true if the receiver has interrupted the work.
inline bool report_and_check_interrupt(EventSink& events, const Event& event) {
  try {
    events.report(event);
    return false;
  } catch (const Interrupted&) {
    return true;
  }
}

class NullSink final : public EventSink {
 public:
  void report(const Event&) override {}
};

}  // namespace optimus
