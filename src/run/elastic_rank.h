// The elastic side of a rank, in a run that continues when ranks are lost: it watches the run's store for
// membership changes. ElasticRank is for a run whose store is hosted by the process that started its
// workers. LaunchedElasticRank is for ranks that a launcher started: it finds a new store when the process
// that hosts the store is lost. Every process has a standby store, and the first survivor whose standby
// store the other ranks can reach hosts the run from then on (run_host.h).
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "comm/comm.h"
#include "launch/rendezvous.h"
#include "launch/run_host.h"
#include "launch/store_file.h"
#include "observe/status_line.h"
#include "run/rank_watch.h"
#include "run/train_rank.h"
#include "rundir/folder_lock.h"
#include "rundir/worker_signals.h"
#include "store/movable_store.h"
#include "store/store_server.h"

namespace optimus {

// The elastic side of a rank whose run is hosted by its starting process: the watch and the callbacks of the
// rank.
class ElasticRank {
 public:
  // All arguments must outlive this.
  ElasticRank(const RunStoreAddress& where, Comm& comm, int worker_id, const WorkerSignals& signals,
              StatusLine& line, std::optional<MembershipChange> order = {});
  const RankElastic* get() const { return &elastic_; }
  bool is_end_requested() const { return watch_.is_end_requested(); }

 private:
  RankWatch watch_;
  RankElastic elastic_;
};

struct LaunchedRankFacts {
  RunStoreAddress where;  // the address at which this process has reached the run's store
  std::shared_ptr<KeyStore> store;
  std::string address;  // address of this process for other processes
  int worker_id = 0;
  std::vector<int> worker_ids;              // worker ids at the start of the run, or in `order`
  std::optional<MembershipChange> order{};  // the first order of a worker that joins a running training
  Path folder;                              // of the run, as an absolute path
  WorkerSignals signals;
  // Returns the options for hosting the run, which is in the generation that `last` began, or in its first
  // generation if `last` is empty.
  std::function<RunHostOptions(const std::optional<MembershipChange>& last)> host_facts;
  bool is_one_host = false;
};

class LaunchedElasticRank {
 public:
  explicit LaunchedElasticRank(LaunchedRankFacts facts);
  ~LaunchedElasticRank();

  // For the rank's Comm.
  std::shared_ptr<KeyStore> store() const { return store_; }
  // Called before and after the rank's work.
  const RankElastic* begin(Comm& comm, StatusLine& line);
  void end() { watch_.reset(); }
  // The run's key-value board, on whichever process hosts it now; null if no host can be reached.
  std::unique_ptr<Board> open_board();
  // On rank 0: hosts the run from its start.
  void host();
  // The host of the run if this process is it, else null. Used after the rank's work has ended.
  RunHost* hosted() { return host_.get(); }
  // Called by the host of the store before it ends: waits until the other ranks have reported how they
  // ended.
  void wait_for_others_to_end(const std::function<bool()>& is_interrupted);

 private:
  void membership_changed(const MembershipChange& order);
  bool read_standby_addresses();
  bool find_store();
  void take_over(const std::map<int, std::string>& unreached);
  void take_lock();
  void remove_stale_store_file();
  std::string own_standby_address() const;

  const LaunchedRankFacts facts_;
  RealFileSystem files_;
  std::unique_ptr<StoreServer> standby_store_;
  const std::shared_ptr<MovableStore> store_;
  std::unique_ptr<RankWatch> watch_;
  RankElastic elastic_;
  std::vector<int> seats_;                        // worker ids of the workers that stay
  std::map<int, std::string> standby_addresses_;  // by worker id: addresses of the first kMaxStandbys of them
  std::optional<MembershipChange> last_;
  std::unique_ptr<Board> board_;  // if this process is the host
  std::unique_ptr<StoreFile> store_file_;
  std::unique_ptr<RunHost> host_;
  bool is_new_host_ = false;
  FolderLock lock_;  // lock of the run, acquired when the previous host has released it
};

}  // namespace optimus
