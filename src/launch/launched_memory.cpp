// Implements launched_memory.h.
#include "launch/launched_memory.h"

#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "checkpoint/manifest.h"
#include "elastic/host_memory.h"
#include "elastic/memory_level.h"
#include "model/tensors.h"
#include "plan/plan.h"
#include "rundir/worker_list.h"

namespace optimus {

void announce_memory(const TrainOptions& options, const Path& run, const std::vector<PresentRank>& ranks) {
  if (options.memory_every == 0) return;
  if (find_memory_level(run))
    throw UserError(
        "--memory-every: the run was started without a launcher before and left its state in the memory of "
        "this host; resume it here without a launcher (optimus train --resume {}), or remove the state "
        "(optimus checkpoint clear {})",
        run.string(), run.string());
  RealFileSystem files;
  announce_host_memory(files, run, options.memory_folder, host_numbers(ranks));
}

TrainResult run_with_memory(const RunSpec& spec, const Path& run, int rank,
                            const std::function<TrainResult()>& run_training) {
  const std::optional<HostMemory> memory = find_host_memory(run);
  if (memory && spec.options.memory_every > 0) {
    const Plan& plan = spec.settings.plan;
    const std::int64_t width = plan.precision == Precision::fp64 ? 8 : 4;
    const Bytes state(std::ssize(kStateFields) * width * num_parameters(spec.settings.model));
    const int host = memory->host_of.at(static_cast<std::size_t>(rank));
    open_host_memory(*memory, rank, memory->for_ranks(storing_ranks(plan)).bytes_on_host(host, state));
  }
  return run_and_remove_memory(run, run_training);
}

namespace {

bool has_other_local_workers(const Path& run) {
  const std::vector<WorkerEntry> workers = listed_workers(run);
  return std::any_of(workers.begin(), workers.end(), [](const WorkerEntry& other) {
    return other.host == host_name() && other.pid != ::getpid();
  });
}

}  // namespace

void make_memory_of_joining_worker(const TrainOptions& options, const Path& run) {
  const std::optional<HostMemory> memory = find_host_memory(run);
  if (!memory || options.memory_every == 0) return;
  make_memory_folder(*memory);
  // Steps that were left by exited processes are outdated, because the run has advanced in the meantime.
  if (!has_other_local_workers(run)) remove_steps(*memory);
}

// The location is read before `run_training` is called, because the first rank that finishes removes the
// record.
TrainResult run_and_remove_memory(const Path& run, const std::function<TrainResult()>& run_training) {
  const std::optional<HostMemory> memory = find_host_memory(run);
  if (!memory) return run_training();
  TrainResult result = run_training();
  const bool has_left = result.end == TrainEnd::left;
  if (!has_left || !has_other_local_workers(run)) remove_host_memory(*memory);
  if (!has_left) remove_host_memory(run, true);
  return result;
}

}  // namespace optimus
