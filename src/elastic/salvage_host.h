// The side of a salvage (salvage.h) that decides and puts the checkpoint together: in the process that hosts the run's store. Does not
// start or end processes; whoever does (workers.h) calls look() again and again and leaves the ranks alone meanwhile.
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
  std::optional<Path> memory{};  // its first level (memory_level.h)
  ModelSpec model;
  Retention retention{};
  std::vector<SmallFile> small_files{};  // beside state.json
  Seconds come{10};                      // for all who can to say where they stand, from the first on
  Seconds settle{2};  // for those whom somebody has missed and who may yet come, from the last on
  Seconds slow{45};   // for those whose process shows that it lives: less than ranks wait for an order
  // For the larger part of a run that has fallen apart to find itself, before half of it or less goes on: longer than its ranks need
  // to see that the store does not answer, and to agree on another.
  Seconds cut{25};
  Seconds write{300};
  Regrouping* regrouping = nullptr;  // the ranks go on where they can; none: what is left is saved
  bool may_be_cut_off = false;       // whom nobody hears may live, and go on, too
};

// One thread.
class SalvageHost {
 public:
  // Both must outlive this.
  SalvageHost(Board& board, FileSystem& files, SalvageFacts facts);

  // is_gone: [seat], whether it has ended, or counts as lost. True: a salvage is under way, leave them alone. Never waits.
  bool look(const std::vector<bool>& is_gone);
  // The ranks' launcher ends them: who has not said within a moment where it stands is not waited for.
  void hurry();
  // When no rank runs any more: removes what was begun and is not whole. What to tell behind why the run failed, beginning with "; ",
  // or nothing.
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
  // [rank]: of the membership; ranks are seats where nobody regroups.
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
  std::int64_t epoch_ = 0;  // of the plan that the newest of them lie as
  Layout layout_;           // of masters and moments under it
  std::size_t num_holders_ = 0;
  std::optional<Deadline> come_, settle_, slow_, cut_, write_;
  std::map<int, std::pair<std::string, Deadline>>
      beats_;  // by rank: its last pulse, and until when the next must come
  SalvagePlan plan_;
  SalvageOrder order_;
  std::string why_it_ends_;  // the others do not go on; begins with "; "
  std::string why_not_;      // nothing was saved
  bool is_saved_ = false, is_in_haste_ = false;
};

}  // namespace optimus
