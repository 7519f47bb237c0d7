// Writes the run folder. The process that starts the run creates the folder with the settings and the plan,
// and rank 0 records the steps and decisions in it.
#pragma once

#include <functional>
#include <string>

#include "base/event.h"
#include "base/file.h"
#include "observe/decisions.h"
#include "observe/metrics.h"
#include "observe/status_line.h"
#include "observe/tensorboard.h"
#include "settings/run_spec.h"

namespace optimus {

// The record files of a run.
struct RunFolder {
  Path path;
  MetricsFile metrics;
  TensorBoardFile board;
  MetricsFile decisions;  // in the format of decision_line()
};

// Creates the folder, or reuses the folder of a run that is resumed. `table` may be null. Throws UserError if
// the folder already contains a run that is not being resumed, or if the folder cannot be written.
void begin_run_folder(const RunSpec& spec, const OptionTable* table, FileSystem& files);
// Opens the records. A resumed run keeps its metrics up to last_step. `check` is called before a file is
// replaced and may throw.
RunFolder open_records(const Path& run, FileSystem& files, std::int64_t last_step,
                       const std::function<void()>& check = {});

// Records a step. Reports a warning if that fails.
void record(const StepMetrics& metrics, RunFolder& folder, EventSink& events);
// Shows a decision to the user and records it.
template <typename Recorded>  // Decision or MeasuredGain
void report(const Recorded& decision, RunFolder& folder, StatusLine& line, EventSink& events) {
  line.print(text(decision));
  const Outcome<void> written = folder.decisions.append_line(decision_line(decision));
  if (!written) events.report(Warning{written.error().why});
}

}  // namespace optimus
