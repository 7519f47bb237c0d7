// One line that shows progress: rewritten in place on a terminal, plain lines at intervals elsewhere. The
// content comes from observe/progress.h.
//
// Permanent lines, such as warnings, are printed through the same object, so that they and the status line do
// not overwrite each other.
#pragma once

#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "base/units.h"

namespace optimus {

using Clock = std::function<Seconds()>;
Seconds steady_seconds();  // monotonic, from an arbitrary origin

// Thread-safe. `out` must outlive this; write errors are ignored. Control characters are removed.
class StatusLine {
 public:
  explicit StatusLine(std::FILE* out, Clock clock = steady_seconds);
  // For a log: each line begins with the time (base/time_stamp.h). `console` is the stream that
  // switch_to_console() switches to; null if there is none.
  static StatusLine for_log(std::FILE* out, std::FILE* console = nullptr) {
    return StatusLine(out, steady_seconds, true, console);
  }
  void switch_to_console();
  // Output from now on is also written to this log, each line with its time, and progress every 10 s; null
  // stops this.
  void log_to(std::FILE* log);
  StatusLine(const StatusLine&) = delete;
  ~StatusLine() { clear(); }

  Seconds now() const { return clock_(); }
  // The maximum length of a line: the terminal's present width, unlimited without a terminal.
  int columns() const;
  // Whether show() would draw now: every 0.1 s on a terminal, every 10 s elsewhere, beginning 10 s after the
  // start (short work needs no progress in a log).
  bool is_due() const;
  // Draws the line if it is due, and returns whether it did.
  bool show(std::string_view line);
  void show_now(std::string_view line);
  // Prints a permanent line above the status line.
  void print(std::string_view line);
  // On a terminal: clear() removes the status line, keep() leaves it and moves to the next line.
  void clear();
  void keep();

 private:
  StatusLine(std::FILE* out, Clock clock, bool has_time_stamps, std::FILE* console = nullptr);
  void draw(std::string_view line);
  void write(const std::string& text);
  void write_log(const std::string& line);

  std::FILE* out_;
  std::FILE *console_, *log_ = nullptr;
  Clock clock_;
  bool has_time_stamps_ = false;
  bool is_terminal_;
  mutable std::mutex mutex_;
  Seconds next_print_, next_log_;
  std::string visible_line_;  // on the terminal at present
};

}  // namespace optimus
