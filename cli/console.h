// A command's output: results on standard output, progress and warnings on standard error.
#pragma once

#include <string>

#include "base/event.h"
#include "base/json.h"
#include "base/stop_token.h"
#include "observe/progress.h"
#include "observe/status_line.h"

namespace optimus {

class Console final : public EventSink {
 public:
  Console();

  bool wants_json = false;

  // Prints a command's result: the JSON value if --json is set, otherwise the text.
  void result(const OrderedJson& json, const std::string& text);
  // Prints part of a result while the remaining part is still being computed. Not used with --json.
  void stream(const std::string& text);
  // Throws Interrupted after SIGINT or SIGTERM. Callable from any thread.
  void report(const Event& event) override;
  // The status line. Training uses it directly, because its progress display is more than a sequence of
  // events.
  StatusLine& line() { return line_; }
  // The same check as in report(), for work without output.
  void check_interrupted() const;
  // SIGINT and SIGHUP request a stop. SIGTERM requests that this worker leave the run.
  StopToken stop_token() const;

 private:
  void write(const std::string& text);

  StatusLine line_;
  StatusLineSink events_;
};

// Returns the width of the terminal on standard output, or `default_columns` if there is no terminal or it is
// too narrow for drawings.
int terminal_columns(int default_columns);

}  // namespace optimus
