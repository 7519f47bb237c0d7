// A child process. Its standard input, output and error are either pipes to this process or inherited. It
// runs in a separate process group, so that Ctrl-C reaches only the parent process. Not used for the workers
// of a run (workers.h), which also report results.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/file.h"

namespace optimus {

struct ChildOptions {
  std::string program;                                           // looked up in PATH
  std::vector<std::string> arguments;                            // argv, starting with the program's name
  std::vector<std::pair<std::string, std::string>> variables{};  // in addition to those of this process
  Path folder{};           // working directory; if empty, that of this process
  bool has_pipes = false;  // if false, its input is empty, and output and error are inherited
};

class ChildProcess {
 public:
  // Throws RuntimeFailure if the process cannot be started.
  explicit ChildProcess(const ChildOptions& options);
  ChildProcess(ChildProcess&& other) noexcept;
  // Kills the process if it is still running.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  // File descriptors of the pipes. They are -1 if they are closed or if there are no pipes. Reads do not
  // block.
  int input() const { return input_; }
  int output() const { return output_; }
  int errors() const { return errors_; }
  void close_input();
  void close_output();
  void close_errors();

  // The exit code, or 128 + the signal number as in shells. Returns nullopt while the process is running.
  std::optional<int> code();
  void signal(int number) const;

 private:
  pid_t pid_ = 0;
  int input_ = -1, output_ = -1, errors_ = -1;
  std::optional<int> code_;
};

}  // namespace optimus
