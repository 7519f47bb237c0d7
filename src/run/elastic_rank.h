// The elastic side of a rank in a run that continues when ranks are lost. It watches the run's store for
// membership changes. HostedElasticRank is for a run whose store is hosted by the process that started the
// workers. LaunchedElasticRank is for ranks started by a launcher. It finds a new store when the process that
// hosts the store is lost. Every process has a standby store, and the first survivor whose standby store the
// other ranks can reach hosts the run from then on (run_host.h).
#pragma once

#include <memory>
#include <mutex>
#include <optional>

#include "base/stop_token.h"
#include "comm/comm.h"
#include "elastic/membership_change.h"
#include "engine/step_heartbeat.h"
#include "launch/rendezvous.h"
#include "launch/run_host.h"
#include "launch/store_file.h"
#include "run/rank_watch.h"
#include "rundir/folder_lock.h"
#include "store/movable_store.h"
#include "store/store_server.h"

namespace optimus {

// The interface through which a rank's training learns of membership changes and carries them out.
class ElasticRank {
 public:
  virtual ~ElasticRank() = default;
  virtual int worker_id() const = 0;
  // Whether all ranks must take part in a membership change, because a worker joins or ranks were lost.
  virtual bool wants_membership_change() = 0;
  // Called before the Comm changes its membership.
  virtual void membership_changed(const MembershipChange& order) = 0;
  // The object to which the rank's engine reports its progress; null if the engine does not report progress.
  virtual StepHeartbeat* step_heartbeat() = 0;
  // The first order of a worker that joins a running training.
  virtual const std::optional<MembershipChange>& first_order() const = 0;
};

// A rank of a run that is hosted by the process that started it.
class HostedElasticRank final : public ElasticRank {
 public:
  // The Comm must outlive this object.
  HostedElasticRank(const RunStoreAddress& store_address, Comm& comm, int worker_id,
                    std::optional<MembershipChange> first_order = {});
  int worker_id() const override { return worker_id_; }
  bool wants_membership_change() override { return watch_.wants_membership_change(); }
  void membership_changed(const MembershipChange& order) override {
    watch_.membership_changed(order.membership);
  }
  StepHeartbeat* step_heartbeat() override { return watch_.step_heartbeat(); }
  const std::optional<MembershipChange>& first_order() const override { return first_order_; }
  // Signals a stop when the process that hosts the run ends it.
  StopToken stop_token() const {
    return StopToken([this] { return watch_.is_end_requested() ? StopRequest::stop : StopRequest::none; });
  }

 private:
  const int worker_id_;
  const std::optional<MembershipChange> first_order_;
  RankWatch watch_;
};

struct LaunchedRankFacts {
  RunStoreAddress store_address;  // the address at which this process reached the run's store
  std::shared_ptr<KeyStore> store;
  std::string address;  // the address at which other processes can reach this process
  int worker_id = 0;
  std::vector<int> worker_ids;              // worker ids at the start of the run, or in `order`
  std::optional<MembershipChange> order{};  // the first order of a worker that joins a running training
  Path folder;                              // the run folder, as an absolute path
  StopToken stop;
  // Returns the options for hosting the run. The run is in the generation that `last` started, or in its
  // first generation if `last` is empty.
  std::function<RunHostOptions(const std::optional<MembershipChange>& last)> host_facts;
  bool is_one_host = false;
};

class LaunchedElasticRank final : public ElasticRank {
 public:
  explicit LaunchedElasticRank(LaunchedRankFacts facts);
  ~LaunchedElasticRank() override;

  int worker_id() const override { return facts_.worker_id; }
  bool wants_membership_change() override;
  void membership_changed(const MembershipChange& order) override;
  StepHeartbeat* step_heartbeat() override { return watch_->step_heartbeat(); }
  const std::optional<MembershipChange>& first_order() const override { return facts_.order; }

  // The store for the rank's Comm.
  std::shared_ptr<KeyStore> store() const { return store_; }
  // begin() is called before the rank's work and end() after it. The Comm must exist until end().
  void begin(Comm& comm);
  void end() { watch_.reset(); }
  // Opens the run's key-value board on the process that currently hosts it. Returns null if no host can be
  // reached.
  std::unique_ptr<Board> open_board();
  // Called on rank 0 to host the run from its start.
  void host();
  // The host of the run, or null if another process hosts it. Used after the rank's work has ended.
  RunHost* run_host() { return host_.get(); }
  // Called before the process exits. If it hosts the store, waits until the other ranks have reported how
  // they ended.
  void wait_for_others_to_end();

 private:
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
  std::vector<int> worker_ids_;                   // worker ids of the workers that stay
  std::map<int, std::string> standby_addresses_;  // of the first kMaxStandbys workers, keyed by worker id
  std::optional<MembershipChange> last_change_;
  std::unique_ptr<Board> board_;  // null if this process is not the host
  std::unique_ptr<StoreFile> store_file_;
  std::unique_ptr<RunHost> host_;
  bool is_new_host_ = false;
  FolderLock lock_;  // lock of the run, acquired after the previous host has released it
};

}  // namespace optimus
