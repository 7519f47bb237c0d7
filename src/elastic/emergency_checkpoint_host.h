// Decides about emergency checkpoints (emergency_checkpoint.h) in the process that hosts the run's store, and
// commits them. Does not start or stop processes. The owner (launch/workers.h) calls poll() periodically and
// does not stop ranks while it returns true.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "checkpoint/checkpoints.h"
#include "elastic/emergency_checkpoint.h"
#include "elastic/membership_coordinator.h"
#include "model/spec.h"
#include "rundir/board.h"

namespace optimus {

struct EmergencyCheckpointOptions {
  Path run;
  std::optional<Path> memory{};  // first checkpoint level (memory_level.h)
  ModelSpec model;
  Retention retention{};
  std::vector<SmallFile> small_files{};  // stored in addition to state.json
  Seconds report_timeout{10};            // for all ranks to report, after the first report
  // The time after the last report during which ranks that are reported as missing may still report.
  Seconds late_grace{2};
  // Timeout for ranks whose heartbeat continues. Must be shorter than the time for which ranks wait for an
  // order.
  Seconds slow_rank_grace{45};
  // If at most half of the ranks are reachable, they wait this long before they continue, so that the
  // majority acts first in a network partition. Must be longer than ranks need to detect that the store is
  // unreachable and to agree on another one.
  Seconds partition_timeout{25};
  Seconds write_timeout{300};
  // If set, the ranks continue if possible. If null, the state is only saved.
  MembershipCoordinator* coordinator = nullptr;
  // True if unreachable ranks may be alive and may continue without the ranks on this host.
  bool may_be_partitioned = false;
};

// One thread.
class EmergencyCheckpointHost {
 public:
  // `board` and `files` must outlive this object.
  EmergencyCheckpointHost(Board& board, FileSystem& files, EmergencyCheckpointOptions options);

  // `is_gone[worker_id]` is true if the worker has exited or is considered lost. Returns true while an
  // emergency checkpoint or membership change is in progress. The caller must not stop ranks during that
  // time. Never blocks.
  bool poll(const std::vector<bool>& is_gone);
  // Called when the launcher is stopping the ranks. From then on, the host waits only briefly for their
  // reports.
  void stop_waiting();
  // Called when all ranks have exited. Removes an incomplete checkpoint. Returns a text to append to the
  // run's failure line, which begins with "; ", or an empty string.
  std::string finish();

 private:
  enum class Stage { idle, collecting, writing, finished };
  void collect_survivor_states();
  void update_heartbeats();
  bool has_heartbeat(int rank) const;
  bool have_all_reported(const std::vector<bool>& is_gone) const;
  void decide();
  bool has_majority() const;
  bool continue_run();
  std::vector<SurvivorState> all_survivor_states() const;
  // Converts a vector indexed by worker id to one indexed by rank. Without membership changes, they are
  // equal.
  std::vector<bool> by_rank(const std::vector<bool>& is_gone) const;
  void refuse(const std::string& why);
  void collect(const std::vector<bool>& is_gone);
  void commit(const std::vector<EmergencyCheckpointPart>& parts);
  void load_layout();
  std::string last_checkpoint() const;

  Board& board_;
  FileSystem& files_;
  const EmergencyCheckpointOptions options_;
  RecoveryKeys keys_;
  int num_ranks_ = 0;
  Stage stage_ = Stage::idle;
  std::map<int, SurvivorState> survivor_states_;
  std::int64_t epoch_ = 0;  // of the plan by which the newest states are laid out
  Layout layout_;           // of masters and moments under that plan
  std::size_t num_holders_ = 0;
  std::optional<Deadline> report_deadline_, late_deadline_, slow_rank_deadline_, partition_deadline_,
      write_deadline_;
  // By rank: the last heartbeat and the deadline for the next one.
  std::map<int, std::pair<std::string, Deadline>> heartbeats_;
  EmergencyCheckpointPlan plan_;
  EmergencyCheckpointOrder order_;
  std::string continue_error_;  // the reason why the ranks cannot continue; begins with "; "
  std::string save_error_;      // the reason why nothing was saved
  bool is_saved_ = false, is_ending_run_ = false;
};

}  // namespace optimus
