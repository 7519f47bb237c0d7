// Implements run_folder.h.
#include "run/run_folder.h"

#include <chrono>

#include "base/error.h"
#include "checkpoint/checkpoints.h"
#include "plan/plan_json.h"
#include "rundir/plan_files.h"
#include "settings/phases.h"

namespace optimus {
namespace {

Seconds wall_time() {
  return Seconds(std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count());
}

// A run that is resumed with the same plan keeps its plan epoch.
std::int64_t next_epoch(const Path& run, const Plan& plan) {
  const std::optional<std::int64_t> newest = newest_epoch(run);
  if (!newest) return 0;
  try {
    if (read_plan(plan_path(run, *newest)) == plan) return *newest;
  } catch (const ReportedError&) {  // the file does not contain a readable plan
  }
  return *newest + 1;
}

}  // namespace

void begin_run_folder(const RunSpec& spec, const OptionTable* table, FileSystem& files) {
  const TrainSettings& settings = spec.settings;
  const Path& run = settings.run;
  std::error_code error;
  const Path checkpoints = run / kCheckpointsFolder;
  const bool has_checkpoints =
      std::filesystem::is_directory(checkpoints, error) && !std::filesystem::is_empty(checkpoints, error);
  if (spec.options.resume.empty() &&
      (has_checkpoints || std::filesystem::exists(run / "metrics.jsonl", error)))
    throw UserError(
        "{} already contains a run; continue it with --resume, or choose another folder with --run",
        run.string());
  value_or_throw(files.create_folders(run / "tensorboard"));
  std::string resolved;
  if (table != nullptr) {
    resolved = table->resolved_toml();
  } else {
    OptionTable table_of_copy;
    TrainOptions copy = spec.options;
    declare(table_of_copy, copy);
    resolved = table_of_copy.resolved_toml();
  }
  value_or_throw(write_atomically(files, run / "settings.toml", resolved));
  save_plan(files, run, settings.plan, spec.options.resume.empty() ? 0 : next_epoch(run, settings.plan));
  write_phase_plans(files, run, settings);
}

RunFolder open_records(const Path& run, FileSystem& files, std::int64_t last_step,
                       const std::function<void()>& check) {
  return {run, value_or_throw(MetricsFile::open(files, run / "metrics.jsonl", last_step, check)),
          value_or_throw(TensorBoardFile::create(files, run / "tensorboard", wall_time(), last_step)),
          value_or_throw(MetricsFile::open(files, run / "decisions.jsonl", last_step, check))};
}

void record(const StepMetrics& metrics, RunFolder& folder, EventSink& events) {
  for (const Outcome<void>& written :
       {folder.metrics.append(metrics), folder.board.append(metrics, wall_time())})
    if (!written) events.report(Warning{written.error().why});
}

}  // namespace optimus
