// Lists the ranks of a run in its workers.json during the lifetime of this object: for a run of one process,
// and for ranks that are threads of one process. Ranks in processes of their own are listed by the process
// that starts them (workers.h).
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "launch/join_request.h"

namespace optimus {

class ListedRanks {
 public:
  // `devices[rank]` is the device of each rank. Creates a log file per rank. Write errors are ignored.
  ListedRanks(Path run, const std::vector<std::string>& devices);
  // For ranks that a launcher started, each in its own process with its own log.
  ListedRanks(Path run, const std::vector<PresentRank>& ranks, const std::vector<std::string>& devices);
  // Clears the list.
  ~ListedRanks();
  ListedRanks(const ListedRanks&) = delete;

  Path log(int rank) const;
  // Appends a line to the rank's log.
  void append_to_log(int rank, const std::string& line) const;

 private:
  const Path run_;
};

}  // namespace optimus
