// Watches the run's store on a separate thread while a rank trains. It aborts this rank's waits when another
// rank of its generation has stopped because ranks were lost, and it reports requests for a membership change
// (membership_change.h). It also publishes this process's heartbeat, including whether the training thread
// hangs. If the thread still hangs after the other ranks have continued without this rank, the process exits.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/comm.h"
#include "elastic/heartbeat.h"
#include "engine/step_heartbeat.h"
#include "store/key_store.h"

namespace optimus {

class RankWatch {
 public:
  // `comm` must outlive this object.
  RankWatch(std::shared_ptr<KeyStore> store, std::string prefix, Comm& comm, int worker_id,
            int generation = 0);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;

  // Called before the Comm changes its membership.
  void membership_changed(const Membership& membership);
  // Whether all ranks should stop for a membership change. Callable from any thread.
  bool wants_membership_change() const { return wants_membership_change_; }
  // Whether the run should end. Callable from any thread.
  bool is_end_requested() const { return is_end_requested_; }
  // The object through which the rank's engine reports its progress.
  StepHeartbeat* step_heartbeat() { return &step_heartbeat_; }

 private:
  void watch();
  bool probe_store();  // returns false if the store cannot be reached
  Heartbeat heartbeat();
  void end_if_abandoned(const Heartbeat& heartbeat);

  const std::shared_ptr<KeyStore> store_;
  const std::string prefix_;
  Comm& comm_;
  const int worker_id_;
  std::mutex mutex_;
  int generation_;
  std::int64_t num_probes_ = 0;
  bool has_announced_start_ = false;
  StepHeartbeat step_heartbeat_;
  std::optional<Deadline> final_deadline_;
  std::atomic<bool> wants_membership_change_ = false, is_end_requested_ = false, is_stopping_ = false;
  std::thread thread_;
};

}  // namespace optimus
