// See process_rank.h.
#include "run/process_rank.h"

#include "checkpoint/checkpoint.h"
#include "rundir/worker_protocol.h"
#include "settings/phases.h"

namespace optimus {

Path run_settings_path(const Path& run) { return run / "logs" / "settings.json"; }

Json run_settings(const RunSpec& spec, const OptionTable& table) {
  return {{"options", serialize_options(table)},
          {"checkpoint", spec.resumed.checkpoint
                             ? Json(std::filesystem::absolute(*spec.resumed.checkpoint).string())
                             : Json()}};
}

RunSpec read_run_settings(const Path& folder, const JsonView& view, bool is_gpu, TrainOptions& options,
                          OptionTable& table) {
  restore_options(table, view.at("options").raw(), view.location());
  RunSpec spec;
  if (const auto checkpoint = view.find("checkpoint")) {
    spec.resumed.checkpoint = checkpoint->text();
    spec.resumed.state =
        parse_training_state(Checkpoint::open(*spec.resumed.checkpoint).small_file(kTrainingStateFile),
                             (*spec.resumed.checkpoint / kTrainingStateFile).string());
  }
  options.run = folder;
  options.plan = folder / "plan.json";
  NullSink null_sink;  // the starting process has already printed everything
  spec.settings =
      resolve(options, {.is_gpu = is_gpu}, &table, null_sink, spec.resumed.checkpoint, spec.resumed.state);
  spec.settings.phase_plans = read_phase_plans(folder, spec.settings);
  spec.script = script_of(options, spec.settings);
  spec.options = options;
  return spec;
}

}  // namespace optimus
