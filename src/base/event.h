// How lower folders say what they are doing without knowing who listens.
//
// A function that works long or meets something worth knowing takes an EventSink&. The command line shows
// events as a progress line and warnings; a run writes them to its logs; a test collects them. report() may
// be called from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

namespace optimus {

// `done` of `total` in `unit`; total 0 means that the end is not known.
struct Progress {
  std::string activity;  // "tokenizing"
  std::int64_t done = 0, total = 0;
  std::string unit;  // "bytes"
};

// Something the user should know, though the work goes on. One line.
struct Warning {
  std::string text;
};

using Event = std::variant<Progress, Warning>;

// Thrown out of report() when the user wants the work to end; whoever works closes everything and lets it pass.
struct Interrupted {};

class EventSink {
 public:
  virtual ~EventSink() = default;
  virtual void report(const Event& event) = 0;
};

class NullSink final : public EventSink {
 public:
  void report(const Event&) override {}
};

}  // namespace optimus
