// Implements status.h.
#include "report/status.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "base/error.h"
#include "base/json.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "rundir/folder_lock.h"
#include "rundir/worker_list.h"
#include "settings/options.h"

namespace optimus {
namespace {

constexpr Bytes kMaxMetricsBytes{std::int64_t{1} << 32};

// The state letter of a process, for example "R" in "4711 (optimus-engine) R 1 …". Returns nullopt if the
// process does not exist.
std::optional<char> process_letter(int pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string stat;
  if (!std::getline(file, stat)) return std::nullopt;
  const std::size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ? std::nullopt : std::optional(stat[end + 2]);
}

std::string state_of(const WorkerEntry& worker) {
  if (worker.host != host_name()) return "on another host";
  const std::optional<char> letter = process_letter(worker.pid);
  if (!letter || *letter == 'Z' || *letter == 'X') return "gone";
  return *letter == 'T' || *letter == 't' ? "stopped" : "running";
}

std::vector<WorkerStatus> workers_of(const Path& run) {
  std::vector<WorkerStatus> result;
  for (WorkerEntry& worker : listed_workers(run)) {
    std::string state = state_of(worker);
    result.push_back({std::move(worker), std::move(state)});
  }
  return result;
}

// Reads the last complete metrics line.
void read_last_step(const Path& run, RunStatus& status) {
  const Outcome<std::string> content = read_file(run / "metrics.jsonl", kMaxMetricsBytes);
  if (!content) return;
  const std::size_t end = content->rfind('\n');
  if (end == std::string::npos || end == 0) return;
  const std::size_t previous_end = content->rfind('\n', end - 1);
  const std::size_t begin = previous_end == std::string::npos ? 0 : previous_end + 1;
  const Json json = parse_json(content->substr(begin, end - begin), (run / "metrics.jsonl").string());
  const JsonView view(json, (run / "metrics.jsonl").string());
  status.step = view.at("step").integer(), status.epoch = view.at("epoch").integer();
  if (const auto loss = view.find("loss")) status.loss = loss->number();
  if (const auto rate = view.find("tokens_per_second")) status.tokens_per_second = rate->number();
}

// The planned number of steps, or nullopt if the settings cannot be read.
std::optional<std::int64_t> steps_of(const Path& run) {
  TrainOptions options;
  OptionTable table;
  declare(table, options);
  try {
    read_config_file(table, run / "settings.toml", {}, Origin::run);
  } catch (const ReportedError&) {
    return std::nullopt;
  }
  return options.steps;
}

// Leaves the fields empty if the host of a worker is unknown, or if all workers are on one host.
void find_host_redundancy(RunStatus& status) {
  std::vector<std::string> hosts;
  std::vector<int> host_of(status.workers.size(), -1);
  for (const WorkerStatus& entry : status.workers) {
    const auto rank = static_cast<std::size_t>(entry.worker.rank);
    if (rank >= host_of.size()) return;
    const auto it = std::find(hosts.begin(), hosts.end(), entry.worker.host);
    host_of[rank] = static_cast<int>(it - hosts.begin());
    if (it == hosts.end()) hosts.push_back(entry.worker.host);
  }
  for (const Pipeline& pipeline : status.plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const int device : stage.devices)
        // The worker list and the plan were written at different times.
        if (device >= std::ssize(host_of)) return;
  if (hosts.size() < 2) return;
  const std::vector<int> smallest_set = smallest_domain_set(status.plan, host_of);
  status.num_tolerated_host_losses = static_cast<int>(smallest_set.size()) - 1;
  for (const int host : smallest_set) status.fatal_hosts.push_back(hosts[static_cast<std::size_t>(host)]);
}

}  // namespace

RunStatus status_of(const Path& run) {
  std::error_code error;
  if (!std::filesystem::exists(run, error)) throw UserError("{}: no such folder", run.string());
  if (!std::filesystem::exists(run / "plan.json", error))
    throw UserError("{}: not a run folder (plan.json is missing)", run.string());
  RunStatus status;
  status.is_running = FolderLock::is_taken(run);
  status.plan = read_plan(run / "plan.json");
  status.num_tolerated_losses = num_tolerated_losses(status.plan),
  status.fatal_devices = smallest_owner_set(status.plan);
  read_last_step(run, status);
  status.steps = steps_of(run);
  status.workers = workers_of(run);
  find_host_redundancy(status);
  return status;
}

}  // namespace optimus
