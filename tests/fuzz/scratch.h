// A folder for the files of a fuzzer, removed when the fuzzer ends. If the fuzzer is killed, run.sh removes
// it with its own folder.
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
