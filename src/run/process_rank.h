// A rank that is a separate process: the settings that it reads from the run's folder, its part of the
// training, and the result that it reports. For workers of one machine, ranks of a launcher, and workers
// that join.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/json.h"
#include "comm/comm.h"
#include "observe/status_line.h"
#include "run/train_rank.h"
#include "rundir/board.h"

namespace optimus {

// run_settings() serializes everything that a rank must know about a run besides its folder;
// read_run_settings() reads it.
Json run_settings(const PreparedRun& run, const OptionTable& table);
PreparedRun read_run_settings(const Path& folder, const JsonView& settings, bool is_gpu,
                              TrainOptions& options, OptionTable& table);
// The file with these settings, which worker processes and joining workers read.
Path run_settings_path(const Path& run);

struct RankPlacement {
  std::string device;
  int threads = 1;
  std::function<bool()> is_interrupted;
  std::function<std::unique_ptr<Board>()> open_board{};  // as in RankPart
  const RankElastic* elastic = nullptr;                  // as in RankPart
};
// Runs the rank's part, from connecting to the end of the last step. Returns the result in the format of
// parse_result.
Json train_part(const PreparedRun& run, const TrainOptions& options, const RankPlacement& worker_id,
                Comm& comm, StatusLine& line);
TrainResult parse_result(const Json& json);

}  // namespace optimus
