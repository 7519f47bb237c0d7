// What a command prints: results on standard output, progress and warnings on standard error.
#pragma once

#include <string>

#include "base/event.h"
#include "base/json.h"
#include "observe/progress.h"
#include "observe/status_line.h"

namespace optimus {

class Console final : public EventSink {
 public:
  Console();

  bool wants_json = false;

  // A command's result: the JSON alone with --json, else the text.
  void result(const OrderedJson& json, const std::string& text);
  // A part of a result that is shown while the rest is made. Not with --json.
  void stream(const std::string& text);
  // Throws Interrupted after SIGINT or SIGTERM. Any thread.
  void report(const Event& event) override;
  // For progress that is more than events, as that of a training.
  StatusLine& line() { return line_; }
  // As report does, for work that has nothing to show.
  void check_interrupted() const;
  bool is_interrupted() const;
  // The two kinds of it, for a worker of a run: SIGTERM, it is to go; SIGINT, the run is to end.
  bool is_told_to_leave() const;
  bool is_told_to_end() const;

 private:
  void write(const std::string& text);

  StatusLine line_;
  LineSink events_;
};

// Of the terminal that standard output goes to; `otherwise` when it is none, or too narrow for a picture.
int terminal_columns(int otherwise);

}  // namespace optimus
