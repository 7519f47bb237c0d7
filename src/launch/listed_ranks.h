// The ranks of a run that are in this process, named in the run's workers.json while this lives: of a run of one process, and of
// one whose ranks are threads. Those that are processes of their own are listed by whoever starts them (workers.h).
#pragma once

#include <string>
#include <vector>

#include "base/file.h"
#include "launch/hello.h"

namespace optimus {

class ListedRanks {
 public:
  // devices: of each rank. Makes their logs. That nothing can be written ends no training.
  ListedRanks(Path run, const std::vector<std::string>& devices);
  // Ranks that a launcher started, each in a process of its own with its own log.
  ListedRanks(Path run, const std::vector<PresentRank>& ranks, const std::vector<std::string>& devices);
  // No rank is left then.
  ~ListedRanks();
  ListedRanks(const ListedRanks&) = delete;

  Path log(int rank) const;
  // A line in the rank's log.
  void note(int rank, const std::string& line) const;

 private:
  const Path run_;
};

}  // namespace optimus
