// A file that grows during training. Write errors must not end the training, so only the first error is
// reported. Later writes are dropped, because nothing can follow a half-written record. Used by
// observe/metrics.h and observe/tensorboard.h.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "base/file.h"

namespace optimus {

// One thread at a time. Writes are unbuffered, so that other programs can follow the file.
class LogFile {
 public:
  explicit LogFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}

  Outcome<void> write(std::string_view bytes) {
    if (file_ == nullptr) return {};
    Outcome<void> outcome = file_->write(std::as_bytes(std::span(bytes)));
    if (!outcome) file_.reset();
    return outcome;
  }

 private:
  std::unique_ptr<WritableFile> file_;
};

}  // namespace optimus
