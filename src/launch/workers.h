// Starts, watches and stops the worker processes of a run on this machine. run/worker.h does the work of a
// worker, and comm/c10d_comm.h connects the workers.
//
// Each worker is a process that writes standard output and error to its log. It has a separate process group,
// so that Ctrl-C reaches only this process, and it exits when this process exits. If one worker fails, the
// others have some time to report what they observed. Then all workers are stopped, and one line describes
// the first failure.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/file.h"
#include "base/stop_token.h"
#include "elastic/emergency_checkpoint_host.h"
#include "rundir/train_result.h"
#include "rundir/worker_protocol.h"

namespace optimus {

struct WorkersOptions {
  Path program;                        // "/proc/self/exe"
  std::vector<std::string> arguments;  // argv, starting with the program's name
  Path run;  // run folder; logs are written to RUN/logs, the list of workers to RUN/workers.json
  std::vector<std::string> devices;  // [worker id]
  int threads = 1;                   // of each worker
  std::string host = "127.0.0.1";    // of the store
  int port = 0;
  bool is_etcd = false;
  std::string token{};
  Seconds grace{10};  // time that the other workers have after the first has failed
  // The same time if the other workers may continue without the failed one. They report if they cannot
  // continue.
  Seconds long_grace{10};
  // The time after which a stopped worker is considered failed, or lost if the other workers continue.
  Seconds timeout{600};
};

class Workers {
 public:
  // Starts all workers. If this fails, stops them and throws RuntimeFailure.
  explicit Workers(WorkersOptions options);
  // Stops all workers that are still running.
  ~Workers();
  Workers(const Workers&) = delete;

  // Waits until all workers have exited and returns the result of rank 0. Polls `stop` and, when it is
  // requested, asks all workers once to stop. If a worker failed, throws ReportedError with a one-line
  // message. With `emergency_checkpoint`, the state of the remaining ranks is saved before they exit. With
  // `coordinator`, they continue without lost ranks if possible.
  TrainResult wait(const StopToken& stop, EmergencyCheckpointHost* emergency_checkpoint = nullptr,
                   MembershipCoordinator* coordinator = nullptr);
  std::vector<WorkerEntry> entries() const;  // of all workers, by worker id

  pid_t pid(int rank) const { return workers_[static_cast<std::size_t>(rank)].pid; }

 private:
  struct Worker {
    pid_t pid = 0;
    int pipe = -1;  // the end from which its report is read
    std::string line;
    std::optional<WorkerReport> report;
    std::optional<int> status;  // exit status from waitpid
    int failure_order = -1;  // order of failure: 0 for the worker that failed first; -1 if it has not failed
    bool is_ended_by_us = false;
    std::optional<Deadline> stopped{};  // deadline for it to continue if it was stopped by a signal (SIGSTOP)
    bool is_excluded = false;           // the other workers continue without it
  };
  void start(int rank);
  void poll(int milliseconds);
  void read_report(Worker& worker);
  void reap(Worker& worker);
  void note_failures();
  void signal_all(int number);
  void end_all();
  void write_list() const;
  void track_members();
  void drop_excluded();
  void record_lost(int worker_id);
  std::string describe_end(int rank) const;
  TrainResult result_of_rank_0() const;
  bool has_ended() const;
  // Whether all workers that are still running were reported missing by other workers. If so, no further
  // reports are expected.
  bool do_only_missing_run() const;
  bool has_grace_expired();
  std::vector<bool> find_lost_workers() const;
  std::optional<int> first_failed() const;
  std::string failure_text() const;
  std::string describe(int rank) const;

  const WorkersOptions options_;
  RealFileSystem files_;
  std::vector<Worker> workers_;  // [worker id]
  int num_failed_ = 0;
  std::optional<Deadline> grace_, long_grace_;
  MembershipCoordinator* coordinator_ = nullptr;
  int generation_ = 0;  // of the list in workers.json
};

}  // namespace optimus
