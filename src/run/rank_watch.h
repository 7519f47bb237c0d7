// What a rank looks for in the run's store while it trains, on a thread of its own: that somebody of its generation stands still because
// others are lost, which ends this rank's waits too, and that all are to meet (regroup.h). Also shows that its process lives, and when
// the thread that works hangs; whom the others have gone on without for that, and who still hangs then, ends.
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

  // Before the Comm regroups.
  void regrouped(const Membership& membership);
  // That all are to meet. Any thread.
  bool wants_to_meet() const { return wants_to_meet_; }
  // That the run is to end. Any thread.
  bool is_told_to_end() const { return is_told_to_end_; }
  // For the rank's engine.
  StepBeacon* beacon() { return &beacon_; }

 private:
  void watch();
  bool look();  // false: the store is not reached
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
