// Checks that the ranks on all hosts use the same run folder. Rank 0 creates a mark file there, and the other
// ranks wait for it to appear.
#pragma once

#include <functional>
#include <string>

#include "base/file.h"

namespace optimus {

// Rank 0's mark file in the run's folder. The destructor removes it. Throws ReportedError if the file cannot
// be created.
class FolderMark {
 public:
  FolderMark(const Path& run, const std::string& name);
  ~FolderMark();
  FolderMark(const FolderMark&) = delete;

 private:
  const Path path_;
};

// Called on the other ranks: waits for the mark file. Throws UserError with the names of both hosts if the
// file does not appear in time. `check_interrupted` is called while waiting and may throw.
void expect_same_folder(const Path& run, const std::string& mark, const std::string& host_of_first,
                        const std::function<void()>& check_interrupted);

}  // namespace optimus
