// A training by several worker processes of this machine: the side of the starting process, and the side of a
// worker.
#pragma once

#include "elastic/emergency_checkpoint_host.h"
#include "elastic/membership_coordinator.h"
#include "launch/run_host.h"
#include "run/join.h"
#include "run/train.h"
#include "run/train_rank.h"
#include "rundir/worker_protocol.h"

namespace optimus {

// Starts `size` workers and waits for them. The run's folder must exist; `options` and `table` contain the
// resolved settings. Throws UserError with one line if a worker fails, Interrupted if the user ended the run;
// no process is left in either case.
TrainResult train_with_workers(const PreparedRun& run, const TrainOptions& options, const OptionTable& table,
                               int size, const WorkerCommand& command);

// In a worker: reads the run's settings and runs the rank's part. Returns the exit code.
int train_as_worker(const WorkerSpec& place, TrainOptions& options, OptionTable& table,
                    const WorkerSignals& signals);

// Shared with train_launched.h. run_settings() serializes everything that a rank must know about a run
// besides its folder; read_run_settings() reads it.
Json run_settings(const PreparedRun& run, const OptionTable& table);
PreparedRun read_run_settings(const Path& folder, const JsonView& settings, bool is_gpu,
                              TrainOptions& options, OptionTable& table);
// The file of these settings, for worker processes and for workers that join.
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
// What the host needs to let the workers continue without others. `device` is the state before the run
// allocates on it.
MembershipCoordinator::Facts regrouping_facts(const TrainSettings& settings, const TrainOptions& options,
                                              const Path& folder, const DeviceFacts& device);
// What the host of the store needs to write an emergency checkpoint. `folder` is absolute.
EmergencyCheckpointOptions salvage_facts(const TrainSettings& settings, const TrainOptions& options,
                                         const Path& folder);
// For a process that hosts a run without a starting process; the caller fills in the workers.
RunHostOptions host_facts_of(const PreparedRun& run, const TrainOptions& options, const Path& folder,
                             const DeviceFacts& device);

}  // namespace optimus
