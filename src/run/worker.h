// One worker of a run: a process that the run's starting process (workers.h) made, with a rank of its own. Joins the others, does
// its work, and reports how that ended.
#pragma once

#include <functional>
#include <future>
#include <memory>

#include "base/event.h"
#include "comm/comm.h"
#include "observe/status_line.h"
#include "rundir/board.h"
#include "rundir/worker_protocol.h"
#include "store/key_store.h"

namespace optimus {

// What the others wait for a rank that starts: reading data takes time, and differs.
inline constexpr Seconds kStartPatience{600};

// The work of a rank; what it returns goes into the report. line: what a person reads at rank 0, the rank's log elsewhere.
using WorkerBody = std::function<Json(Comm& comm, StatusLine& line)>;

// Returns the exit code: 0 done, 130 interrupted, 1 failed. Ends with the process that started it, however that ends. A failure
// also leaves the rank's last operations in its log.
int run_as_worker(const WorkerPlace& place, const WorkerBody& body);

// What it is made of, for ranks that others started (train_launched.h): joins, does the work, and says how it ended. The rank's
// last operations go to `log` after a failure.
WorkerReport report_of_work(const std::function<std::unique_ptr<Comm>()>& join_run, std::FILE* log,
                            StatusLine& line, const WorkerBody& body);
int exit_code(WorkerReport::End end);
// Ends this process when that one, which has started it, ends.
void live_as_long_as(int parent);

StorePlace store_place(const WorkerPlace& place);
// The run's store as a board, reached anew; null, with a line in the rank's log, when it is not.
std::unique_ptr<Board> open_board(const StorePlace& place);

}  // namespace optimus
