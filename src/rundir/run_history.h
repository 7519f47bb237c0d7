// The history of past runs on this machine (cost/history.h). A training reads it before choosing a plan and
// extends it at the end. No data leaves the machine. If the file cannot be read or written, the run prints a
// warning and continues.
#pragma once

#include <string>

#include "base/event.h"
#include "base/file.h"
#include "cost/history.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// `history` is a file, "here" (next to the results of `optimus profile`), or "none". Returns an empty history
// if the file is missing, and also, with a warning, if it is invalid.
History load_history(const std::string& history, EventSink& events);

// Describes a completed run for record_run(), which evaluates the records in its folder if there are enough
// of them. If two runs end at the same time, one of them may not be recorded.
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
