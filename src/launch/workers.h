// Starts, watches and ends the worker processes of a run on this machine. The work of a worker is in
// worker.h, the connections between workers are in comm/c10d_comm.h.
//
// Each worker is a process with standard output and error in its log, in a process group of its own, so
// that Ctrl-C reaches only this process, and it ends when this process ends. When one fails, the others get
// some time to report their observations; then all are ended, and one line names the first failure.
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
  // The same time if the other workers may continue without the failed one; they report themselves if they
  // cannot.
  Seconds long_grace{10};
  // Time after which a stopped worker counts as failed, or as lost if the other workers continue.
  Seconds timeout{600};
};

class Workers {
 public:
  // Starts all workers. Throws RuntimeFailure if that fails; none is left running then.
  explicit Workers(WorkersOptions options);
  // Ends all workers that still run.
  ~Workers();
  Workers(const Workers&) = delete;

  // Waits until all have ended and returns the result of rank 0. `stop` is polled: when it is requested,
  // all workers are asked once to stop. Throws a ReportedError, with one line, if one failed. With
  // `emergency_checkpoint`, the state of the remaining ranks is saved before they end; with `coordinator`,
  // they continue without lost ranks if they can.
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
    std::optional<Deadline> stopped{};  // if it is stopped by a signal (SIGSTOP): deadline for it to continue
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
  // Whether all workers that still run were reported missing by other workers, so that no further reports
  // can be expected.
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
