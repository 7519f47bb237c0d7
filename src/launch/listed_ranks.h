// Lists the ranks of a run in workers.json during the lifetime of this object. Used if the run has one
// process or its ranks are threads of one process, and for ranks that were started by a launcher. Other
// worker processes are listed by the process that starts them (workers.h).
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "launch/join_request.h"

namespace optimus {

class ListedRanks {
 public:
  // `devices[rank]` is the device of each rank. Creates a log file for each rank. Write errors are ignored.
  ListedRanks(Path run, const std::vector<std::string>& devices);
  // For ranks that were started by a launcher, each in a separate process with a separate log.
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
