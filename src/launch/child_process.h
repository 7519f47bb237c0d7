// A program that this one has started, with its standard input, output and error in our hands or left as they are. In a process
// group of its own, so that Ctrl-C reaches only us. Not the workers of a run (workers.h), which have more to say.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace optimus {

struct ChildOptions {
  std::string program;                                           // looked for in PATH
  std::vector<std::string> words;                                // the name first
  std::vector<std::pair<std::string, std::string>> variables{};  // beside those of this process
  Path folder{};                                                 // to run in; empty: ours
  bool has_pipes = false;  // else its input is empty, and output and error are ours
};

class ChildProcess {
 public:
  // Throws UserError when it cannot be started.
  explicit ChildProcess(const ChildOptions& options);
  ChildProcess(ChildProcess&& other) noexcept;
  // Ends it, if it still runs.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // With pipes; -1 when closed. Those that are read do not block.
  int input() const { return input_; }
  int output() const { return output_; }
  int errors() const { return errors_; }
  void close_input();
  void close_output();
  void close_errors();

  // The exit code, 128 + the signal's number as shells have it; nothing while it runs.
  std::optional<int> code();
  void signal(int number) const;

 private:
  pid_t pid_ = 0;
  int input_ = -1, output_ = -1, errors_ = -1;
  std::optional<int> code_;
};

}  // namespace optimus
