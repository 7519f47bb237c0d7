// See process_rank.h.
#include "run/process_rank.h"

#include <limits>

#include "checkpoint/checkpoint.h"
#include "engine/device.h"
#include "observe/progress.h"
#include "settings/phases.h"

namespace optimus {

namespace {

Json to_json(const TrainResult& result) {
  return {{"run", result.run},
          {"checkpoint", result.checkpoint},
          {"steps", result.steps},
          {"loss", result.loss},
          {"validation_loss", result.validation_loss ? Json(*result.validation_loss) : Json()},
          {"tokens_per_second", result.tokens_per_second},
          {"sample", result.sample}};
}

}  // namespace

Path run_settings_path(const Path& run) { return run / "logs" / "settings.json"; }

Json run_settings(const PreparedRun& run, const OptionTable& table) {
  return {
      {"options", serialize_options(table)},
      {"checkpoint",
       run.resumed.checkpoint ? Json(std::filesystem::absolute(*run.resumed.checkpoint).string()) : Json()}};
}

PreparedRun read_run_settings(const Path& folder, const JsonView& view, bool is_gpu, TrainOptions& options,
                              OptionTable& table) {
  restore_options(table, view.at("options").raw(), view.location());
  PreparedRun run;
  if (const auto checkpoint = view.find("checkpoint")) {
    run.resumed.checkpoint = checkpoint->text();
    run.resumed.state =
        parse_training_state(Checkpoint::open(*run.resumed.checkpoint).small_file(kTrainingStateFile),
                             (*run.resumed.checkpoint / kTrainingStateFile).string());
  }
  options.run = folder;
  options.plan = folder / "plan.json";
  NullSink quiet;  // the starting process has printed everything already
  run.settings =
      resolve(options, {.is_gpu = is_gpu}, &table, quiet, run.resumed.checkpoint, run.resumed.state);
  run.settings.phase_plans = read_phase_plans(folder, run.settings);
  run.script = script_of(options, run.settings);
  return run;
}

Json train_part(const PreparedRun& run, const TrainOptions& options, const RankPlacement& worker_id,
                Comm& comm, StatusLine& line) {
  StatusLineSink events(line);
  StepAgreement agreement(comm, options.timeout);
  const Json result =
      to_json(train_rank(run, options,
                         {comm, parse_device(worker_id.device), worker_id.threads, events, line, agreement,
                          worker_id.is_interrupted, worker_id.open_board, worker_id.elastic}));
  agreement.take();  // completes the last agreement, for which other ranks have already sent their votes
  return result;
}

TrainResult parse_result(const Json& json) {
  const JsonView view(json, "the result of rank 0");
  TrainResult result;
  result.run = view.at("run").text(), result.checkpoint = view.at("checkpoint").text();
  result.steps = view.at("steps").integer();
  result.loss = view.number_or("loss", std::numeric_limits<double>::quiet_NaN());  // NaN is null in JSON
  if (const auto loss = view.find("validation_loss")) result.validation_loss = loss->number();
  result.tokens_per_second = view.number_or("tokens_per_second", 0);
  result.sample = view.at("sample").text();
  return result;
}

}  // namespace optimus
