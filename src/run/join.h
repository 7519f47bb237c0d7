// A process that takes part in a run that is under way: one that somebody starts with `optimus join`, or a worker that the others have
// gone on without. It says that it is there, gets everything ready, and begins with the order of the generation that it comes to
// (regroup.h).
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

// What a rank that goes on without others is made of: its watch, and what it is told.
class ElasticSeat {
 public:
  // All must outlive this.
  ElasticSeat(const RunStorePlace& where, Comm& comm, int seat, const WorkerSignals& signals,
              StatusLine& line, std::optional<RegroupOrder> order = {});
  const RankElastic* get() const { return &elastic_; }
  bool is_told_to_end() const { return watch_.is_told_to_end(); }

 private:
  RankWatch watch_;
  RankElastic elastic_;
};

// Workers by seat, as the run's folder has those that are in it.
std::vector<WorkerEntry> workers_by_seat(const Path& run, const Membership& membership);

struct JoinOptions {
  Path run;
  std::string device{};  // empty: as the run's
  int threads = 1;
  Seconds patience{600};  // for the run to let it in
  bool was_in = false;    // it was a worker of the run: whose store is not reached may be cut off for a while
};

// Until the run ends, or this worker leaves. Returns the exit code. Throws UserError when it is not let in.
int train_as_comer(const JoinOptions& join, TrainOptions& options, OptionTable& table,
                   const WorkerSignals& signals, StatusLine& line);

}  // namespace optimus
