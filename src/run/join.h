// A process that joins a running training: one that was started with `optimus join`, or a worker that the
// others have continued without. It registers in the run's store, prepares everything, and starts with the
// order of the generation that it joins (regroup.h).
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "comm/comm.h"
#include "launch/store_file.h"
#include "observe/status_line.h"
#include "run/rank_watch.h"
#include "run/train_rank.h"
#include "rundir/worker_protocol.h"
#include "rundir/worker_signals.h"
#include "settings/options.h"
#include "store/key_store.h"

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

// The workers in the run's folder, indexed by worker id.
std::vector<WorkerEntry> workers_by_id(const Path& run, const Membership& membership);

struct JoinOptions {
  Path run;
  std::string device{};  // empty: the run's device type
  int threads = 1;
  Seconds timeout{600};  // timeout for the run to accept this worker
  // it was a worker of this run: if the store cannot be reached, the network may be cut off for a while
  bool was_member = false;
};

// Trains until the run ends or this worker leaves. Returns the exit code. Throws UserError if the run does
// not accept the worker.
int train_as_joining_worker(const JoinOptions& join, TrainOptions& options, OptionTable& table,
                            const WorkerSignals& signals, StatusLine& line);

}  // namespace optimus
