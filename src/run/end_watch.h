// What ranks of a launcher know of each other's end, through the run's store: whoever fails says so, whoever dies leaves a will that does,
// and each rank's watch ends that rank's waits, wherever they are. Before the first step a rank that is stopped is noticed, too: watches
// count in the store, and rank 0's looks whether they do. From then on the ranks wait for each other, with --patience. Any thread.
#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "base/units.h"
#include "comm/comm.h"
#include "launch/gathering.h"
#include "rundir/worker_protocol.h"

namespace optimus {

class EndWatch {
 public:
  // patience: for ranks that are silent while they start. is_interrupted: whether the user wants the end.
  EndWatch(const Gathered& run, Comm& comm, Seconds patience, std::function<bool()> is_interrupted);
  ~EndWatch();
  EndWatch(const EndWatch&) = delete;

  // Work whose waits are ended. Throws Interrupted where that was because the user wanted the end before the first step.
  Json guard(const std::function<Json()>& work);
  // For the agreement (StepAgreement), which is told after every step and from then on ends the ranks itself.
  bool is_interrupted();

 private:
  struct Silence;
  void watch();
  // Why the rank is to end, if it is.
  std::string look(Silence& silence);
  void note_silent_ranks(Silence& silence);

  const Gathered run_;
  Comm& comm_;
  const Seconds patience_;
  const std::function<bool()> is_interrupted_;
  std::atomic<bool> is_over_ = false, has_stepped_ = false, has_interrupted_ = false;
  std::thread thread_;
};

// How a rank has ended, for all to know: the first failure ends the others. False: nobody heard it.
bool tell_end(const Gathered& run, int rank, const WorkerReport& report);
// What a rank has told. Nothing when it has not, or when it is no report.
std::optional<WorkerReport> told_end(const Gathered& run, int rank);

}  // namespace optimus
