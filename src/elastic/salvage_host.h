// The deciding side of an emergency checkpoint (salvage.h), in the process that hosts the run's store; it
// also commits the checkpoint. Does not start or end processes; the owner (workers.h) calls look()
// periodically and leaves the ranks alone meanwhile.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "checkpoint/checkpoints.h"
#include "elastic/regrouping.h"
#include "elastic/salvage.h"
#include "model/spec.h"
#include "rundir/board.h"

namespace optimus {

struct SalvageFacts {
  Path run;
  std::optional<Path> memory{};  // first checkpoint level (memory_level.h)
  ModelSpec model;
  Retention retention{};
  std::vector<SmallFile> small_files{};  // stored in addition to state.json
  Seconds come{10};                      // for all ranks to report, after the first report
  Seconds settle{2};  // after the last report, for ranks that others have missed and that may still report
  Seconds slow{45};   // for ranks whose heartbeat continues: shorter than ranks wait for an order
  // For the majority of a partitioned run to act first, before half of it or less continues: longer than
  // ranks need to detect that the store is unreachable, and to agree on another.
  Seconds cut{25};
  Seconds write{300};
  Regrouping* regrouping = nullptr;  // the ranks continue if possible; null: the state is only saved
  bool may_be_cut_off = false;       // unreachable ranks may be alive and continue without these
};

// One thread.
class SalvageHost {
 public:
  // Both must outlive this.
  SalvageHost(Board& board, FileSystem& files, SalvageFacts facts);

  // is_gone: [worker id], whether it has ended, or counts as lost. True while an emergency checkpoint or
  // membership change is in progress: leave the ranks alone. Never blocks.
  bool look(const std::vector<bool>& is_gone);
  // The launcher is ending the ranks: do not wait for ranks that have not reported within a moment.
  void hurry();
  // When no rank runs any more: removes an incomplete checkpoint. Returns what to append to the run's failure
  // line, beginning with "; ", or an empty string.
  std::string finish();

 private:
  enum class Stage { nobody, coming, writing, over };
  void take_standings();
  void take_beats();
  bool is_beating(int rank) const;
  bool are_all_here(const std::vector<bool>& is_gone) const;
  void decide();
  bool are_enough() const;
  bool go_on();
  std::vector<Standing> all_standings() const;
  // [rank] of the membership; without membership changes, ranks are worker ids.
  std::vector<bool> by_rank(const std::vector<bool>& is_gone) const;
  void refuse(const std::string& why);
  void collect(const std::vector<bool>& is_gone);
  void commit(const std::vector<SalvagePart>& parts);
  void take_layout();
  std::string last_checkpoint() const;

  Board& board_;
  FileSystem& files_;
  const SalvageFacts facts_;
  SalvageKeys keys_;
  int num_ranks_ = 0;
  Stage stage_ = Stage::nobody;
  std::map<int, Standing> standings_;
  std::int64_t epoch_ = 0;  // of the plan that the newest states are laid out as
  Layout layout_;           // of masters and moments under that plan
  std::size_t num_holders_ = 0;
  std::optional<Deadline> come_, settle_, slow_, cut_, write_;
  std::map<int, std::pair<std::string, Deadline>>
      beats_;  // by rank: its last heartbeat, and the deadline for the next
  SalvagePlan plan_;
  SalvageOrder order_;
  std::string why_it_ends_;  // why the ranks cannot continue; begins with "; "
  std::string why_not_;      // why nothing was saved
  bool is_saved_ = false, is_in_haste_ = false;
};

}  // namespace optimus
