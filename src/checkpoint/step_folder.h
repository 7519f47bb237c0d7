// Names of checkpoint folders: step-N, or step-N.tmp-ID while the checkpoint is being written. Internal to
// src/checkpoint.
#pragma once

#include <cstdint>
#include <optional>

#include "base/file.h"

namespace optimus {

struct StepFolder {
  std::int64_t step = 0;
  bool is_temporary = false;
  Path path;

  // The final name step-N in the same parent folder.
  Path final_path() const;
};

// Returns nullopt if the path has neither form.
std::optional<StepFolder> parse_step_folder(const Path& path);
// Returns a new name on each call, so that a rank that is still writing to the folder of an abandoned save
// cannot write to the folder of the next save.
StepFolder temporary_step_folder(const Path& parent, std::int64_t step);

}  // namespace optimus
