// A rank of a run that no one process has started, and that goes on without those who are lost: what it looks for in the run's store, and where it turns when
// that store is gone with the process that hosted it. Each process has a store of its own ready for that; the first survivor whose one
// the others reach hosts the run from then on (run_host.h).
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "launch/gathering.h"
#include "launch/run_host.h"
#include "launch/store_file.h"
#include "run/join.h"
#include "run/rank_watch.h"
#include "rundir/folder_lock.h"
#include "store/movable_store.h"
#include "store/store_server.h"

namespace optimus {

struct LaunchedSeatFacts {
  RunStorePlace where;  // the run's store, as this process has reached it
  std::shared_ptr<KeyStore> store;
  std::string address;  // of this process, for others
  int seat = 0;
  std::vector<int> seats;               // that the run began with, or the order's
  std::optional<RegroupOrder> order{};  // that it begins with, where it comes to a run
  Path folder;                          // of the run, absolute
  WorkerSignals signals;
  // Should this process host the run, which is in the generation of this order, or in its first; `last` is filled in.
  std::function<RunHostFacts(const std::optional<RegroupOrder>& last)> host_facts;
  bool is_one_host = false;
};

class LaunchedSeat {
 public:
  explicit LaunchedSeat(LaunchedSeatFacts facts);
  ~LaunchedSeat();

  // For the rank's Comm.
  std::shared_ptr<KeyStore> store() const { return store_; }
  // Around the rank's work.
  const RankElastic* begin(Comm& comm, StatusLine& line);
  void end() { watch_.reset(); }
  // The run's board, wherever it is now; null when nobody can be reached any more.
  std::unique_ptr<Board> open_board();
  // Rank 0: hosts the run from its begin.
  void host();
  // When the rank's work is over: what this process still does for others.
  RunHost* hosted() { return host_.get(); }
  // Whoever hosts the store stays until the others have said how they ended.
  void stay_for_others(const std::function<bool()>& is_interrupted);

 private:
  void regrouped(const RegroupOrder& order);
  bool learn_standbys();
  bool find_store();
  void take_over(const std::map<int, std::string>& unreached);
  void take_lock();
  void clear_after_host();
  std::string own_standby() const;

  const LaunchedSeatFacts facts_;
  RealFileSystem files_;
  std::unique_ptr<StoreServer> standby_;
  const std::shared_ptr<MovableStore> store_;
  std::unique_ptr<RankWatch> watch_;
  RankElastic elastic_;
  std::vector<int> seats_;               // of those who stay
  std::map<int, std::string> standbys_;  // of the first of them
  std::optional<RegroupOrder> last_;
  std::unique_ptr<Board> board_;  // of the host
  std::unique_ptr<StoreFile> joining_;
  std::unique_ptr<RunHost> host_;
  bool has_taken_over_ = false;
  FolderLock lock_;  // of the run, when it was left by the host before
};

}  // namespace optimus
