// Whoever hosts the store of a run that goes on without those who are lost: a thread that watches its ranks' pulses, sees who wants to
// come, and decides what the others do when some are gone (salvage_host.h, regrouping.h). In the process of rank 0, and, when that is lost,
// in that of the first survivor (launched_seat.h). Ranks that are children of one process are watched by that instead (workers.h).
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
  std::vector<WorkerEntry> workers;    // by seat
  std::optional<RegroupOrder> last{};  // the run is in this generation; none: in its first
  Plan plan{};                         // of the first
  std::int64_t epoch = 0;
  Seconds silence{2};  // of a pulse, until all are to say where they stand
  std::function<bool()> is_in_haste = [] { return false; };  // the launcher wants the end
};

class RunHost {
 public:
  // All must outlive this.
  RunHost(Board& board, FileSystem& files, RunHostFacts facts);
  ~RunHost();
  RunHost(const RunHost&) = delete;

  // Whether all who stay have said how they ended, or are gone. Any thread.
  bool have_all_ended() const { return have_all_ended_; }
  // When this process has nothing more to do for the run: waits for what is under way, which has deadlines.
  void end();
  // As SalvageHost has it, after end().
  std::string finish() { return salvage_.finish(); }
  // After end().
  const Regrouping& regrouping() const { return regrouping_; }

 private:
  struct Beat {
    std::string last;
    Deadline::Clock::time_point since;
    std::int64_t step = 0;  // that its training had got to
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
  std::map<int, Beat> pulses_;            // by seat
  Deadline::Clock::time_point got_on_{};  // when somebody's training did
  bool is_under_way_ = false;
  std::atomic<bool> is_over_ = false, have_all_ended_ = false;
  std::thread thread_;
};

}  // namespace optimus
