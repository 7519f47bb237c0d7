// Whether ranks of several hosts have the same run folder: rank 0 puts a mark there, the others look for it. Pure.
#pragma once

#include <functional>
#include <string>

#include "base/file.h"

namespace optimus {

// A file of rank 0's in the run's folder; gone with this object. Throws UserError.
class FolderMark {
 public:
  FolderMark(const Path& run, const std::string& name);
  ~FolderMark();
  FolderMark(const FolderMark&) = delete;

 private:
  const Path path_;
};

// Of the others: the mark must appear, soon. Throws UserError that names both hosts. check_interrupted may throw.
void expect_same_folder(const Path& run, const std::string& mark, const std::string& host_of_first,
                        const std::function<void()>& check_interrupted);

}  // namespace optimus
