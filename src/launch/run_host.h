// Hosts the store of a run that survives the loss of ranks: a thread watches the ranks' heartbeats, detects
// join requests, and decides how the others continue after a loss (SalvageHost, Regrouping). It runs in the
// process of rank 0, and after its loss in that of the first survivor (launched_seat.h). Ranks that are
// children of one process are watched by that process instead (workers.h).
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <thread>

#include "base/file.h"
#include "elastic/regrouping.h"
#include "elastic/salvage_host.h"
#include "rundir/fresh_board.h"

namespace optimus {

struct RunHostFacts {
  Regrouping::Facts regrouping;
  SalvageFacts salvage;
  std::vector<WorkerEntry> workers;    // by worker id
  std::optional<RegroupOrder> last{};  // the run is in this generation; nullopt: in its first
  Plan plan{};                         // of the first generation
  std::int64_t epoch = 0;
  Seconds silence{2};  // time without a heartbeat after which all ranks report their survivor state
  std::function<bool()> is_in_haste = [] { return false; };  // the launcher is ending the run
};

class RunHost {
 public:
  // All must outlive this.
  RunHost(Board& board, FileSystem& files, RunHostFacts facts);
  ~RunHost();
  RunHost(const RunHost&) = delete;

  // Whether all staying ranks have reported their end or are lost. Thread-safe.
  bool have_all_ended() const { return have_all_ended_; }
  // Called when this process has nothing more to do for the run: waits for work in progress, which has
  // deadlines.
  void end();
  // See SalvageHost::finish(); call after end().
  std::string finish() { return salvage_.finish(); }
  // Valid after end().
  const Regrouping& regrouping() const { return regrouping_; }

 private:
  struct Beat {
    std::string last;
    Deadline::Clock::time_point since;
    std::int64_t step = 0;  // that its training had reached
  };
  bool look();
  void watch();
  void stop();
  void fetch();
  void take_pulses();
  double silent_for(int seat) const;
  std::vector<bool> who_is_gone();

  FreshBoard board_;
  const Seconds silence_;
  const std::function<bool()> is_in_haste_;
  Regrouping regrouping_;
  SalvageHost salvage_;
  std::map<int, Beat> pulses_;            // by worker id
  Deadline::Clock::time_point got_on_{};  // when any rank's training last advanced a step
  bool is_under_way_ = false;
  std::atomic<bool> is_over_ = false, have_all_ended_ = false;
  std::thread thread_;
};

}  // namespace optimus
