// Checks that the ranks of several hosts use the same run folder: rank 0 creates a mark file there, and the
// other ranks look for it.
#pragma once

#include <functional>
#include <string>

#include "base/file.h"

namespace optimus {

// Rank 0's mark file in the run's folder; removed by the destructor. Throws ReportedError.
class FolderMark {
 public:
  FolderMark(const Path& run, const std::string& name);
  ~FolderMark();
  FolderMark(const FolderMark&) = delete;

 private:
  const Path path_;
};

// On other ranks: waits for the mark. Throws UserError that names both hosts if it does not appear in time.
// check_interrupted may throw.
void expect_same_folder(const Path& run, const std::string& mark, const std::string& host_of_first,
                        const std::function<void()>& check_interrupted);

}  // namespace optimus
