// The history of runs on this machine (cost/history.h) as a training uses it: read before its plan is chosen, and told at its end what
// it took. Nothing leaves the machine, and no run depends on it: what cannot be read or written is one warning.
#pragma once

#include <string>

#include "base/event.h"
#include "base/file.h"
#include "cost/history.h"
#include "model/spec.h"
#include "plan/plan.h"

namespace optimus {

// `history`: a file, "here" (beside what `optimus profile` measures), or "none". A file that is not there yet is an empty history; a
// broken one too, with a warning.
History known_history(const std::string& history, EventSink& events);

// At the end of a run, from its own records, when they say enough. Two runs that end in the same moment: one of them is not remembered.
struct EndedRun {
  Path folder;
  const Plan& plan;  // the last one
  const ModelSpec& model;
  std::string device;    // type, as standard clusters name it
  std::int64_t now = 0;  // seconds since 1970
};
// Whether it was remembered.
bool remember_run(const std::string& history, const EndedRun& run, EventSink& events);

}  // namespace optimus
