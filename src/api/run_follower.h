// Follows the records that a run appends to its folder: steps in metrics.jsonl and decisions in
// decisions.jsonl. Used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "optimus/run.h"

namespace optimus {

// Reads the complete lines that are appended to a file, even if the file is replaced.
class LineFollower {
 public:
  // Skips the current content of the file.
  explicit LineFollower(Path path);
  std::vector<std::string> take();

 private:
  Path path_;
  std::uint64_t inode_ = 0;
  std::int64_t offset_ = 0;
};

class RunFollower {
 public:
  // Steps up to `last_step` are not reported.
  RunFollower(const Path& run, std::int64_t last_step);
  // Returns each step once, even if it is computed again after a rollback.
  std::vector<StepEvent> take_steps();
  std::vector<PlanEvent> take_plans();

 private:
  LineFollower steps_, plans_;
  std::int64_t last_step_;
  std::int64_t last_plan_epoch_ = -1;
};

}  // namespace optimus
