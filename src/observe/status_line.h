// A status line that shows progress. On a terminal it is rewritten in place. Elsewhere, plain lines are
// printed at intervals. observe/progress.h provides the content.
//
// Permanent lines, such as warnings, are printed through the same object so that they do not interfere with
// the status line.
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

// Thread-safe. `out` must outlive this object. Write errors are ignored. Control characters are replaced.
class StatusLine {
 public:
  explicit StatusLine(std::FILE* out, Clock clock = steady_seconds);
  // Creates a status line for a log, in which each line begins with the time (base/time_stamp.h).
  // switch_to_console() switches to the stream `console`, which may be null.
  static StatusLine for_log(std::FILE* out, std::FILE* console = nullptr) {
    return StatusLine(out, steady_seconds, true, console);
  }
  void switch_to_console();
  // Also writes all further output to this log. Each line begins with the time, and progress is written every
  // 10 s. Null stops the log.
  void log_to(std::FILE* log);
  StatusLine(const StatusLine&) = delete;
  ~StatusLine() { clear(); }

  Seconds now() const { return clock_(); }
  // The maximum length of a line: the current width of the terminal, or unlimited without a terminal.
  int columns() const;
  // Whether show() would draw the line now. It is due every 0.1 s on a terminal and every 10 s elsewhere. The
  // first line in a log is due after 10 s, so short activities do not log progress.
  bool is_due() const;
  // Draws the line if it is due, and returns whether it did.
  bool show(std::string_view line);
  void show_now(std::string_view line);
  // Prints a permanent line above the status line.
  void print(std::string_view line);
  // On a terminal, clear() removes the status line, and keep() leaves it and moves to the next line.
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
