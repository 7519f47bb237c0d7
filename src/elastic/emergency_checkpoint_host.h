// The deciding side of an emergency checkpoint (emergency_checkpoint.h), in the process that hosts the run's
// store; it also commits the checkpoint. Does not start or end processes; the owner (workers.h) calls poll()
// periodically and leaves the ranks alone meanwhile.
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
  Seconds late_grace{
      2};  // after the last report, for ranks that others have missed and that may still report
  Seconds slow_rank_grace{45};  // for ranks whose heartbeat continues: shorter than ranks wait for an order
  // For the majority of a partitioned run to act first, before half of it or less continues: longer than
  // ranks need to detect that the store is unreachable, and to agree on another.
  Seconds partition_timeout{25};
  Seconds write_timeout{300};
  MembershipCoordinator* coordinator =
      nullptr;                      // the ranks continue if possible; null: the state is only saved
  bool may_be_partitioned = false;  // unreachable ranks may be alive and continue without these
};

// One thread.
class EmergencyCheckpointHost {
 public:
  // Both must outlive this.
  EmergencyCheckpointHost(Board& board, FileSystem& files, EmergencyCheckpointOptions options);

  // is_gone: [worker id], whether it has ended, or counts as lost. True while an emergency checkpoint or
  // membership change is in progress: leave the ranks alone. Never blocks.
  bool poll(const std::vector<bool>& is_gone);
  // The launcher is ending the ranks: do not wait for ranks that have not reported within a moment.
  void stop_waiting();
  // When no rank runs any more: removes an incomplete checkpoint. Returns what to append to the run's failure
  // line, beginning with "; ", or an empty string.
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
  // [rank] of the membership; without membership changes, ranks are worker ids.
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
  std::int64_t epoch_ = 0;  // of the plan that the newest states are laid out as
  Layout layout_;           // of masters and moments under that plan
  std::size_t num_holders_ = 0;
  std::optional<Deadline> report_deadline_, late_deadline_, slow_rank_deadline_, partition_deadline_,
      write_deadline_;
  std::map<int, std::pair<std::string, Deadline>>
      heartbeats_;  // by rank: its last heartbeat, and the deadline for the next
  EmergencyCheckpointPlan plan_;
  EmergencyCheckpointOrder order_;
  std::string why_not_continued_;  // why the ranks cannot continue; begins with "; "
  std::string why_not_saved_;      // why nothing was saved
  bool is_saved_ = false, is_ending_run_ = false;
};

}  // namespace optimus
