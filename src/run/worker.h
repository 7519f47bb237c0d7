// One worker of a run: a process with one rank, started by the run's starting process (workers.h). A worker
// connects to the other workers, does its work, and reports how the work ended.
#pragma once

#include <functional>
#include <future>
#include <memory>

#include "base/event.h"
#include "comm/comm.h"
#include "observe/status_line.h"
#include "rundir/board.h"
#include "rundir/train_result.h"
#include "rundir/worker_protocol.h"
#include "store/key_store.h"

namespace optimus {

// How long ranks wait for each other to start. The timeout is long because ranks take different times to read
// the data.
inline constexpr Seconds kStartTimeout{600};

// The work of a rank. Its result becomes part of the report. `line` is the console on rank 0 and the rank's
// log on other ranks.
using WorkerBody = std::function<TrainResult(Comm& comm, StatusLine& line)>;

// Returns the exit code: 0 if done, 130 if interrupted, 1 if failed. The worker is killed when the process
// that started it exits. After a failure, the rank's last operations are written to its log.
int run_as_worker(const WorkerSpec& worker, const WorkerBody& body);

// The core of run_as_worker(), which is also used for ranks started by a launcher (train_launched.h). Joins
// the run, does the work, and reports how it ended. After a failure, the rank's last operations are written
// to `log`.
WorkerReport report_of_work(const std::function<std::unique_ptr<Comm>()>& join_run, std::FILE* log,
                            StatusLine& line, const WorkerBody& body);
int exit_code(WorkerReport::End end);
// Makes the kernel kill this process when its parent process `parent` exits.
void end_with_parent(int parent);

StoreAddress store_address_of(const WorkerSpec& worker);
// Opens the run's store as a key-value board through a new connection. If the store cannot be reached,
// returns null and writes a line to the rank's log.
std::unique_ptr<Board> open_board(const StoreAddress& address);

}  // namespace optimus
