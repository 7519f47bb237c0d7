// Starts, watches and ends the worker processes of a run on this machine. What workers do is in worker.h,
// how they connect to each other in comm/c10d_comm.h.
//
// Each worker is a process that writes its standard output and error to its log. It has its own process
// group, so that Ctrl-C reaches only this process, and it ends when this process ends. When one worker
// fails, the other workers have some time to report what they observed; then all are ended, and one line
// names the first failure.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/file.h"
#include "elastic/emergency_checkpoint_host.h"
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
  // The same if the other workers may continue without the failed one; they report themselves if they
  // cannot.
  Seconds long_grace{10};
  Seconds timeout{
      600};  // time after which a stopped worker counts as failed, or as lost if the other workers continue
};

class Workers {
 public:
  // Starts all workers. Throws UserError if one cannot be started; none is left running then.
  explicit Workers(WorkersOptions options);
  // Ends all workers that still run.
  ~Workers();
  Workers(const Workers&) = delete;

  // Waits until all workers have ended and returns the result of rank 0. `is_interrupted` is polled: when
  // it returns true, all workers are asked once to end. Throws Interrupted if they ended for this reason,
  // and UserError with a one-line message if a worker failed. With `emergency_checkpoint`, the state of the
  // remaining ranks is saved before they end; with `coordinator`, the remaining ranks continue without the
  // lost ones if they can.
  Json wait(const std::function<bool()>& is_interrupted,
            EmergencyCheckpointHost* emergency_checkpoint = nullptr,
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
    int order = -1;  // order of failure: 0 for the worker that failed first; -1 if it has not failed
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
  Json result_of_rank_0() const;
  bool has_ended() const;
  // Whether all workers that still run were reported missing by other workers, so that no further reports
  // can be expected.
  bool do_only_missing_run() const;
  bool has_grace_expired();
  std::vector<bool> find_lost_workers() const;
  std::string why() const;
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
