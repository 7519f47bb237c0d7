// The history of runs on this machine (cost/history.h) as a training uses it: read before its plan is chosen,
// and extended at its end. No data leaves the machine, and no run depends on the history: a file that
// cannot be read or written causes one warning.
#pragma once

#include <string>

#include "base/event.h"
#include "base/file.h"
#include "cost/history.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// `history`: a file, "here" (next to the results of `optimus profile`), or "none". A missing file counts as
// an empty history; so does a broken file, with a warning.
History load_history(const std::string& history, EventSink& events);

// Called at the end of a run; evaluates the run's own records if there are enough of them. If two runs end
// at the same moment, one of them may not be recorded.
struct FinishedRun {
  Path folder;
  const Plan& plan;  // the last plan
  const ModelSpec& model;
  std::string device;         // type, as in standard clusters
  std::int64_t end_time = 0;  // seconds since 1970
};
// Returns whether the run was recorded.
bool record_run(const std::string& history, const FinishedRun& run, EventSink& events);

}  // namespace optimus
