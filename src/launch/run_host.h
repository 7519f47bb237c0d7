// Coordinates a run that survives the loss of ranks. A thread watches the heartbeats of the ranks, detects
// join requests, and decides how the other ranks continue after a loss (EmergencyCheckpointHost,
// MembershipCoordinator). It runs in the process of rank 0. If rank 0 is lost, it runs in the process of the
// first remaining rank (elastic_rank.h). If all ranks are child processes of one process, that process
// watches them instead (workers.h).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "base/file.h"
#include "elastic/emergency_checkpoint_host.h"
#include "elastic/membership_coordinator.h"
#include "rundir/cached_board.h"

namespace optimus {

struct RunHostOptions {
  MembershipCoordinator::Inputs coordinator;
  EmergencyCheckpointOptions emergency_checkpoint;
  std::vector<WorkerEntry> workers;  // by worker id
  std::optional<MembershipChange>
      last_change{};  // the change that started the current generation; nullopt in the first generation
  Plan plan{};        // of the first generation
  std::int64_t epoch = 0;
  Seconds silence{2};  // time without a heartbeat after which all ranks report their survivor state
};

class RunHost {
 public:
  // `board` and `files` must outlive this object.
  RunHost(Board& board, FileSystem& files, RunHostOptions options);
  ~RunHost();
  RunHost(const RunHost&) = delete;

  // Whether all staying ranks have reported that they have finished, or are lost. Thread-safe.
  bool have_all_ended() const { return have_all_ended_; }
  // Called when this process has completed its work for the run. Waits for work in progress, which has
  // deadlines.
  void end();
  // See EmergencyCheckpointHost::finish(). Must be called after end().
  std::string finish() { return emergency_checkpoint_.finish(); }
  // Valid after end().
  const MembershipCoordinator& coordinator() const { return coordinator_; }

 private:
  struct LastHeartbeat {
    std::string last_value;
    Deadline::Clock::time_point change_time;
    std::int64_t step = 0;  // the step that its training had reached
  };
  bool poll();
  void watch();
  void stop();
  void fetch();
  void update_heartbeats();
  double silence_of(int worker_id) const;
  std::vector<bool> find_lost_workers();

  CachedBoard board_;
  const Seconds silence_limit_;
  MembershipCoordinator coordinator_;
  EmergencyCheckpointHost emergency_checkpoint_;
  std::map<int, LastHeartbeat> heartbeats_;      // by worker id
  Deadline::Clock::time_point last_progress_{};  // when any rank's training last advanced a step
  bool is_in_progress_ = false;
  std::atomic<bool> is_stopping_ = false, have_all_ended_ = false;
  std::thread thread_;
};

}  // namespace optimus
