// See launched_memory.h.
#include "run/launched_memory.h"

#include <algorithm>

#include "base/error.h"
#include "base/event.h"
#include "checkpoint/manifest.h"
#include "model/tensors.h"
#include "plan/plan.h"
#include "run/host_memory.h"
#include "run/memory_level.h"

namespace optimus {
namespace {

// Hosts in the order of their first ranks.
std::vector<int> hosts_of_ranks(const std::vector<PresentRank>& ranks) {
  std::vector<std::pair<std::string, std::string>> hosts;
  std::vector<int> result;
  for (const PresentRank& at : ranks) {
    const std::pair host(at.host, at.address);
    const auto found = std::find(hosts.begin(), hosts.end(), host);
    result.push_back(static_cast<int>(found - hosts.begin()));
    if (found == hosts.end()) hosts.push_back(host);
  }
  return result;
}

}  // namespace

void announce_memory(const TrainOptions& options, const Path& run, const std::vector<PresentRank>& ranks) {
  if (options.memory_every == 0) return;
  if (find_memory_level(run))
    throw UserError(
        "--memory-every: a run without a launcher has left its state in the memory of this host; go on with "
        "it there (optimus train --resume {}), or remove that state (optimus checkpoint clear {})",
        run.string(), run.string());
  RealFileSystem files;
  announce_host_memory(files, run, options.memory_folder, hosts_of_ranks(ranks));
}

Json with_memory(const TrainSettings& settings, const TrainOptions& options, const Path& run, int rank,
                 const std::function<Json()>& work) {
  const std::optional<HostMemory> memory = find_host_memory(run);
  if (memory && options.memory_every > 0) {
    const std::int64_t width = settings.plan.precision == Precision::fp64 ? 8 : 4;
    const Bytes state(std::ssize(kStateFields) * width * num_parameters(settings.model));
    const int host = memory->host_of.at(static_cast<std::size_t>(rank));
    open_host_memory(*memory, rank, memory->of_ranks(storing_ranks(settings.plan)).kept_on(host, state));
  }
  try {
    Json result = work();
    if (memory) remove_host_memory(*memory);
    return result;
  } catch (const Interrupted&) {
    if (memory) remove_host_memory(*memory);
    throw;
  }
}

}  // namespace optimus
