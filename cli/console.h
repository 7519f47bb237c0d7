// What a command prints: results on standard output, progress and warnings on standard error.
#pragma once

#include <chrono>
#include <mutex>
#include <string>

#include "base/event.h"
#include "base/json.h"

namespace optimus {

class Console final : public EventSink {
 public:
  Console();
  ~Console() override;

  bool wants_json = false;

  // A command's result: the JSON alone with --json, else the text.
  void result(const OrderedJson& json, const std::string& text);
  // Throws Interrupted after SIGINT or SIGTERM. Progress: one line that is drawn over on a terminal, a plain line now and then elsewhere. Any thread.
  void report(const Event& event) override;

 private:
  void show(const Progress& progress);
  void clear_line();

  std::mutex mutex_;
  bool is_terminal_;
  bool has_line_ = false;
  std::chrono::steady_clock::time_point next_, begin_;
};

}  // namespace optimus
