// A folder for what a fuzzer must have as files; gone when the fuzzer ends. One that is killed leaves it to run.sh, whose folder it is in.
#pragma once

#include <unistd.h>

#include "base/file.h"

namespace optimus {

class ScratchFolder {
 public:
  ScratchFolder()
      : path_(std::filesystem::temp_directory_path() / ("optimus-fuzz-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  const Path& path() const { return path_; }

 private:
  const Path path_;
};

}  // namespace optimus
