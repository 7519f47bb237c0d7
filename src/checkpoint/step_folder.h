// Names of checkpoint folders: step-N, and step-N.tmp-ID while it is being written. Internal to src/checkpoint.
#pragma once

#include <cstdint>
#include <optional>

#include "base/file.h"

namespace optimus {

struct StepFolder {
  std::int64_t step = 0;
  bool is_temporary = false;
  Path path;

  // step-N, beside it.
  Path named() const;
};

// Nothing for a path of another form.
std::optional<StepFolder> parse_step_folder(const Path& path);
// A new name each time, so that a rank that is still busy with an abandoned save cannot write into the next one.
StepFolder temporary_step_folder(const Path& parent, std::int64_t step);

}  // namespace optimus
