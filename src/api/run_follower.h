// Follows the records of a run in its folder: steps of metrics.jsonl and decisions of decisions.jsonl as they
// are appended. Used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/file.h"
#include "optimus/run.h"

namespace optimus {

// Reads the complete lines that are appended to a file, even if the file is replaced by another one.
class LineFollower {
 public:
  // The present content of the file is skipped unless the file is replaced.
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
