// One line that says how far the work is: rewritten in place on a terminal, plain lines now and then elsewhere.
// Not what stands in it (observe/progress.h).
//
// Lines that must stay, such as warnings, go through the same object, so that neither tears the other.
#pragma once

#include <cstdio>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "base/units.h"

namespace optimus {

using Clock = std::function<Seconds()>;
Seconds steady_seconds();  // since some moment; never goes back

// Any thread. `out` must outlive this; that it cannot be written is no failure. Control characters never pass.
class StatusLine {
 public:
  explicit StatusLine(std::FILE* out, Clock clock = steady_seconds);
  // Of a log: each line begins with the time (base/time_stamp.h).
  // people: where it goes on when speak_to_people() is called; null: it stays.
  static StatusLine for_log(std::FILE* out, std::FILE* people = nullptr) {
    return StatusLine(out, steady_seconds, true, people);
  }
  void speak_to_people();
  // What is said from now on is also written there, each line with its time, progress every 10 s; null: no more.
  void log_into(std::FILE* log);
  StatusLine(const StatusLine&) = delete;
  ~StatusLine() { clear(); }

  Seconds now() const { return clock_(); }
  // How long a line is shown whole: the terminal's width now, without a terminal any.
  int columns() const;
  // Whether show() would draw now: every 0.1 s on a terminal, every 10 s elsewhere, beginning 10 s after the start
  // (short work needs no progress in a log).
  bool is_due() const;
  // Draws the line if it is due, and says whether it did.
  bool show(std::string_view line);
  void show_now(std::string_view line);
  // A line that stays, above the status line.
  void print(std::string_view line);
  // On a terminal: takes the status line away, or leaves it as it is and goes to the next.
  void clear();
  void keep();

 private:
  StatusLine(std::FILE* out, Clock clock, bool has_times, std::FILE* people = nullptr);
  void draw(std::string_view line);
  void write(const std::string& text);
  void write_log(const std::string& line);

  std::FILE* out_;
  std::FILE *people_, *log_ = nullptr;
  Clock clock_;
  bool has_times_ = false;
  bool is_terminal_;
  mutable std::mutex mutex_;
  Seconds next_, next_logged_;
  std::string shown_;  // on the terminal now
};

}  // namespace optimus
