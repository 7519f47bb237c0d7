// A file that grows while a training runs. Losing it must not end the training: the first failure is told, and
// what comes later is dropped, because after a half-written record nothing can follow. Used by observe/metrics.h
// and observe/tensorboard.h.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace optimus {

// One thread at a time. Every write reaches the system at once, so that others can read along.
class LogFile {
 public:
  explicit LogFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}

  Outcome<void> write(std::string_view bytes) {
    if (file_ == nullptr) return {};
    Outcome<void> done = file_->write(std::as_bytes(std::span(bytes)));
    if (!done) file_.reset();
    return done;
  }

 private:
  std::unique_ptr<WritableFile> file_;
};

}  // namespace optimus
