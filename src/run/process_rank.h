// Transfers the RunSpec to a rank in a separate process, either through the run folder or through the store
// of ranks started by a launcher. Used for workers on one machine, ranks started by a launcher, and joining
// workers.
#pragma once

#include "base/json.h"
#include "settings/run_spec.h"

namespace optimus {

// run_settings() serializes everything that a rank must know about a run besides its folder, and
// read_run_settings() parses it.
Json run_settings(const RunSpec& spec, const OptionTable& table);
RunSpec read_run_settings(const Path& folder, const JsonView& settings, bool is_gpu, TrainOptions& options,
                          OptionTable& table);
// The file that contains these settings. Worker processes and joining workers read it.
Path run_settings_path(const Path& run);

}  // namespace optimus
