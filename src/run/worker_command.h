// WorkerCommand: how the starting process of a run starts its workers. Plain data.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/file.h"

namespace optimus {

// The command line that starts this program as a worker, and whether the user has interrupted the run.
struct WorkerCommand {
  Path program;
  std::vector<std::string> words;
  std::function<bool()> is_interrupted;
};

}  // namespace optimus
