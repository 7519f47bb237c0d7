// Implements worker_list.h.
#include "rundir/worker_list.h"

#include <limits>

#include "base/json.h"

namespace optimus {

std::vector<WorkerEntry> listed_workers(const Path& run) {
  std::vector<WorkerEntry> result;
  const Path path = run / "workers.json";
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return result;
  const Json json = read_json(path);
  for (const JsonView& view : JsonView(json, path.string()).at("workers").elements()) {
    WorkerEntry worker;
    worker.rank = static_cast<int>(view.at("rank").integer(0, std::numeric_limits<int>::max()));
    worker.pid = static_cast<int>(view.at("pid").integer(0, std::numeric_limits<int>::max()));
    worker.host = view.at("host").text(), worker.device = view.at("device").text();
    worker.log = view.at("log").text();
    result.push_back(std::move(worker));
  }
  return result;
}

}  // namespace optimus
