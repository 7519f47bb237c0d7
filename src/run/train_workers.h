// A training by several worker processes of this machine: the side that starts them, and the side of a worker.
#pragma once

#include "elastic/regrouping.h"
#include "elastic/salvage_host.h"
#include "launch/run_host.h"
#include "run/join.h"
#include "run/train.h"
#include "run/train_rank.h"
#include "rundir/worker_protocol.h"

namespace optimus {

// Starts `size` workers and waits for them. The run's folder is begun; options and table hold what was resolved. Throws UserError with one
// line when a worker fails, Interrupted when the user wanted the end; no process is left either way.
TrainResult train_with_workers(const PreparedRun& run, const TrainOptions& options, const OptionTable& table,
                               int size, const WorkerCommand& command);

// In a worker: takes the run's settings over and does the rank's part. Returns the exit code.
int train_as_worker(const WorkerPlace& place, TrainOptions& options, OptionTable& table,
                    const WorkerSignals& signals);

// What both this and train_launched.h are made of. All that a rank must know of a run beside its folder, and back.
Json run_settings(const PreparedRun& run, const OptionTable& table);
PreparedRun take_run_over(const Path& folder, const JsonView& settings, bool is_gpu, TrainOptions& options,
                          OptionTable& table);
// Where they lie for worker processes and those who join.
Path hand_over_path(const Path& run);
struct RankSeat {
  std::string device;
  int threads = 1;
  std::function<bool()> is_interrupted;
  std::function<std::unique_ptr<Board>()> open_board{};  // as RankPart has it
  const RankElastic* elastic = nullptr;                  // likewise
};
// The rank's part, from connecting to the end of the last step; the result as parse_result reads it.
Json train_part(const PreparedRun& run, const TrainOptions& options, const RankSeat& seat, Comm& comm,
                StatusLine& line);
TrainResult parse_result(const Json& json);
// What it must know to let them go on without others. device: as it was before the run had anything on it.
Regrouping::Facts regrouping_facts(const TrainSettings& settings, const TrainOptions& options,
                                   const Path& folder, const DeviceFacts& device);
// What whoever hosts the store must know to save what is left of the run. folder: absolute.
SalvageFacts salvage_facts(const TrainSettings& settings, const TrainOptions& options, const Path& folder);
// For a process that hosts a run which no one process has started; its workers are to be filled in.
RunHostFacts host_facts_of(const PreparedRun& run, const TrainOptions& options, const Path& folder,
                           const DeviceFacts& device);

}  // namespace optimus
