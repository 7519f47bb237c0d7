// Transfers the RunSpec to a rank in a separate process: through the run's folder, or through the store of a
// launcher's ranks. Used for workers of one machine, ranks of a launcher, and joining workers.
#pragma once

#include "base/json.h"
#include "settings/run_spec.h"

namespace optimus {

// run_settings() serializes everything that a rank must know about a run besides its folder;
// read_run_settings() reads it.
Json run_settings(const RunSpec& spec, const OptionTable& table);
RunSpec read_run_settings(const Path& folder, const JsonView& settings, bool is_gpu, TrainOptions& options,
                          OptionTable& table);
// The file with these settings, which worker processes and joining workers read.
Path run_settings_path(const Path& run);

}  // namespace optimus
