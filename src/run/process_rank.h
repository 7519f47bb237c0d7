// How the RunSpec reaches a rank in a process of its own: through the run's folder, or through the store of a
// launcher's ranks. For workers of one machine, ranks of a launcher, and workers that join.
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
