// WorkerCommand specifies how the starting process of a run starts its workers. Plain data.
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "base/stop_token.h"

namespace optimus {

// The command line that starts this program as a worker, and the user's request to stop the run.
struct WorkerCommand {
  Path program;
  std::vector<std::string> words;
  StopToken stop{};
};

}  // namespace optimus
