// Implements run_history.h.
#include "rundir/run_history.h"

#include <algorithm>

#include "adapt/host_profile.h"
#include "adapt/run_evidence.h"
#include "base/error.h"
#include "base/text.h"
#include "cluster/open.h"
#include "cost/history_json.h"
#include "model/tensors.h"
#include "observe/metrics_read.h"
#include "rundir/worker_list.h"

namespace optimus {
namespace {

constexpr int kWarmupSteps = 3;  // steps after a change of plan that are not measured
// Runs with larger records are skipped to limit memory use.
constexpr Bytes kMaxRecordBytes{std::int64_t{256} << 20};

Path file_of(const std::string& history) { return history == "here" ? history_path() : Path(history); }

std::vector<StepMetrics> steps_of_last_plan(const Path& run) {
  const Path path = run / "metrics.jsonl";
  std::vector<StepMetrics> steps =
      parse_metrics(value_or_throw(read_file(path, kMaxRecordBytes)), path.string());
  if (steps.empty()) return steps;
  const std::int64_t last = steps.back().epoch;
  std::erase_if(steps, [&](const StepMetrics& step) { return step.epoch != last; });
  steps.erase(steps.begin(), steps.begin() + std::min<std::ptrdiff_t>(kWarmupSteps, std::ssize(steps)));
  return steps;
}

// Lines that cannot be parsed, such as a truncated last line, are skipped.
std::vector<Observation> observations_since(const Path& run, std::int64_t step) {
  const Path path = run / "observations.jsonl";
  std::error_code error;
  std::vector<Observation> result;
  if (!std::filesystem::exists(path, error)) return result;
  for (const std::string& line : split(value_or_throw(read_file(path, kMaxRecordBytes)), '\n')) try {
      if (trim(line).empty()) continue;
      Observation observation = parse_observation(line, path.string());
      if (observation.step >= step) result.push_back(std::move(observation));
    } catch (const ReportedError&) {
    }
  return result;
}

// The cluster as the adaptation controller saw it, with one node per host.
Cluster cluster_of(const FinishedRun& run) {
  const int size = num_device_numbers(run.plan);
  std::vector<std::string> hosts(static_cast<std::size_t>(size));
  for (const WorkerEntry& worker : listed_workers(run.folder))
    if (worker.rank >= 0 && worker.rank < size) hosts[static_cast<std::size_t>(worker.rank)] = worker.host;
  return Cluster(profile_of(open_cluster(fmt::format("{}x{}", run.device, size)).profile(), hosts));
}

std::optional<PastRun> past_run(const FinishedRun& run) {
  if (run.model.is_custom()) return std::nullopt;
  const std::vector<StepMetrics> steps = steps_of_last_plan(run.folder);
  if (steps.empty()) return std::nullopt;
  const Cluster cluster = cluster_of(run);
  RunMeasurements measurements{
      run.plan, run.model, cluster, run.device, observations_since(run.folder, steps.front().step), {}};
  for (const StepMetrics& step : steps) measurements.step_seconds.push_back(step.seconds.value);
  PastRun past;
  past.evidence = evidence_of(measurements);
  if (past.evidence.empty()) return std::nullopt;
  past.end_time = run.end_time, past.device = run.device, past.devices = num_devices(run.plan);
  past.parameters = num_parameters(run.model), past.layers = run.model.layers;
  past.batch = run.plan.batch, past.sequence_length = run.plan.sequence_length;
  std::nth_element(measurements.step_seconds.begin(),
                   measurements.step_seconds.begin() + std::ssize(steps) / 2,
                   measurements.step_seconds.end());
  past.step_seconds = measurements.step_seconds[steps.size() / 2], past.strategy = strategy_of(run.plan);
  return past;
}

}  // namespace

History load_history(const std::string& history, EventSink& events) {
  std::error_code error;
  if (history == "none" || !std::filesystem::exists(file_of(history), error)) return {};
  try {
    return read_history(history);
  } catch (const ReportedError& error_in_file) {
    events.report(Warning{fmt::format("{}; planning continues without the history", error_in_file.what())});
    return {};
  }
}

bool record_run(const std::string& history, const FinishedRun& run, EventSink& events) {
  if (history == "none") return false;
  try {
    std::optional<PastRun> past = past_run(run);
    if (!past) return false;
    std::error_code error;
    History past_runs;
    // If the file has a different format, read_history() throws, so the file is not overwritten.
    if (std::filesystem::exists(file_of(history), error)) past_runs = read_history(history);
    add_run(past_runs, std::move(*past));
    RealFileSystem files;
    value_or_throw(write_history(files, file_of(history), past_runs));
    return true;
  } catch (const ReportedError& failure) {
    events.report(Warning{fmt::format("{}; the run is not recorded in the history", failure.what())});
    return false;
  }
}

}  // namespace optimus
