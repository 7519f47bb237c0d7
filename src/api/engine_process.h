// The process that trains on behalf of the host program: optimus-engine, started with the training options
// and with its standard streams connected to pipes.
//
// Used by one thread. The process ends when its standard input is closed, so it never outlives the host
// program (cli/engine_train.cpp).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "launch/child_process.h"
#include "optimus/options.h"

namespace optimus {

// Returns the path of optimus-engine: `named` if it is not empty, else $OPTIMUS_WORKER_PROGRAM if it is set,
// else the program that was built or installed next to the library's folder. Throws UserError that lists the
// searched paths.
Path find_worker_program(const std::string& named);

// The command-line arguments of `optimus train` for these options.
std::vector<std::string> train_words(const TrainOptions& options);

class EngineProcess {
 public:
  EngineProcess(const Path& program, const TrainOptions& options);

  // Returns the complete lines that the process has written to standard error since the last call. Waits up
  // to `milliseconds` for output.
  std::vector<std::string> read_messages(int milliseconds);
  std::optional<int> code() { return child_.code(); }
  // Everything that the process has written to standard output.
  const std::string& output() const { return output_; }
  void request_stop();

 private:
  ChildProcess child_;
  std::string output_, unfinished_;
  bool is_stop_requested_ = false;
};

}  // namespace optimus
