// Lets ranks started by a launcher detect through the run's store that another rank has ended. A rank that
// fails records this in the store. If a rank dies, the store sets the last-will key of its connection. The
// watch thread of every other rank then aborts its own rank's waits. Before the first step, stopped ranks are
// detected too: each watch increments a counter in the store, and rank 0 checks that the counters advance.
// From the first step on, --timeout limits how long ranks wait for each other. Thread-safe.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/stop_token.h"
#include "base/units.h"
#include "comm/comm.h"
#include "launch/rendezvous.h"
#include "rundir/train_result.h"
#include "rundir/worker_protocol.h"

namespace optimus {

class EndWatch {
 public:
  // `timeout` applies to ranks that are silent during startup. `stop` is the user's or the launcher's request
  // to end the run.
  EndWatch(const RendezvousResult& run, Comm& comm, Seconds timeout, StopToken stop);
  ~EndWatch();
  EndWatch(const EndWatch&) = delete;

  // Runs `work`, whose waits the watch can abort. Returns TrainEnd::stopped if the watch aborted them because
  // `stop` was requested before the first step.
  TrainResult guard(const std::function<TrainResult()>& work);
  // For the rank's training, which polls the token after every step. From the first poll on, the ranks agree
  // on when to end (StepAgreement), and the watch no longer handles stop requests.
  StopToken stop_token();

 private:
  struct Silence;
  void watch();
  // Returns the reason if this rank has to end, and an empty string if it can continue.
  std::string probe_store(Silence& silence);
  void report_silent_ranks(Silence& silence);

  const RendezvousResult run_;
  Comm& comm_;
  const Seconds timeout_;
  const StopToken stop_;
  std::atomic<bool> is_stopping_ = false, has_stepped_ = false, has_aborted_ = false;
  std::thread thread_;
};

// Publishes how a rank ended. The first failure ends the other ranks. Returns false if the store cannot be
// reached.
bool publish_end(const RendezvousResult& run, int rank, const WorkerReport& report);
// Returns the report of a rank, or nullopt if the rank has not reported or the report is malformed.
std::optional<WorkerReport> published_end(const RendezvousResult& run, int rank);

}  // namespace optimus
