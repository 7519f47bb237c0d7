// Implements listed_ranks.h.
#include "launch/listed_ranks.h"

#include <unistd.h>

#include <fstream>

#include "base/error.h"
#include "base/time_stamp.h"
#include "rundir/worker_list.h"
#include "rundir/worker_protocol.h"

namespace optimus {

ListedRanks::ListedRanks(Path run, const std::vector<std::string>& devices) : run_(std::move(run)) {
  RealFileSystem files;
  (void)files.create_folders(run_ / "logs");
  std::vector<WorkerEntry> entries;
  for (std::size_t rank = 0; rank < devices.size(); ++rank) {
    const int rank_number = static_cast<int>(rank);
    entries.push_back({rank_number, ::getpid(), host_name(), devices[rank], log_path(rank_number)});
    append_to_log(rank_number, fmt::format("rank {} in process {} on {}", rank, ::getpid(), devices[rank]));
  }
  (void)write_atomically(files, run_ / "workers.json", workers_json(entries));
}

ListedRanks::ListedRanks(Path run, const std::vector<PresentRank>& ranks,
                         const std::vector<std::string>& devices)
    : run_(std::move(run)) {
  std::vector<WorkerEntry> entries;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    entries.push_back({static_cast<int>(rank), ranks[rank].pid, ranks[rank].host, devices[rank],
                       log_path(static_cast<int>(rank))});
  RealFileSystem files;
  (void)write_atomically(files, run_ / "workers.json", workers_json(entries));
}

// Clears the list only if it still contains this process. Other processes may have continued without this one
// and written a new list.
ListedRanks::~ListedRanks() {
  try {
    for (const WorkerEntry& entry : listed_workers(run_))
      if (entry.pid == ::getpid() && entry.host == host_name()) {
        RealFileSystem files;
        (void)write_atomically(files, run_ / "workers.json", workers_json({}));
        return;
      }
  } catch (const ReportedError&) {  // the list is unreadable, so it is left unchanged
  }
}

Path ListedRanks::log(int rank) const { return run_ / log_path(rank); }

void ListedRanks::append_to_log(int rank, const std::string& line) const {
  std::ofstream(log(rank), std::ios::app) << time_stamp() << line << '\n';
}

}  // namespace optimus
