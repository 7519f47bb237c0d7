// Watches the run's store while a rank trains, on its own thread. It aborts this rank's waits when another
// rank of its generation stands still because ranks were lost, and it reports requests for a membership
// change (regroup.h). It also publishes this process's heartbeat, including whether the working thread hangs.
// If the others have continued without this rank and it still hangs, the process ends.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/comm.h"
#include "elastic/pulse.h"
#include "engine/step_beacon.h"
#include "store/key_store.h"

namespace optimus {

class RankWatch {
 public:
  // comm must outlive this.
  RankWatch(std::shared_ptr<KeyStore> store, std::string prefix, Comm& comm, int seat, int generation = 0);
  ~RankWatch();
  RankWatch(const RankWatch&) = delete;

  // Called before the Comm changes its membership.
  void regrouped(const Membership& membership);
  // Whether all ranks are to meet for a membership change. Callable from any thread.
  bool wants_to_meet() const { return wants_to_meet_; }
  // Whether the run is to end. Callable from any thread.
  bool is_told_to_end() const { return is_told_to_end_; }
  // For the rank's engine.
  StepBeacon* beacon() { return &beacon_; }

 private:
  void watch();
  bool look();  // false: the store cannot be reached
  Pulse pulse();
  void end_if_given_up(const Pulse& pulse);

  const std::shared_ptr<KeyStore> store_;
  const std::string prefix_;
  Comm& comm_;
  const int seat_;
  std::mutex mutex_;
  int generation_;
  std::int64_t num_looks_ = 0;
  bool has_said_begun_ = false;
  StepBeacon beacon_;
  std::optional<Deadline> last_chance_;
  std::atomic<bool> wants_to_meet_ = false, is_told_to_end_ = false, is_over_ = false;
  std::thread thread_;
};

}  // namespace optimus
