// The worker processes of a run on this machine: started, watched, and ended together. Not what they do (worker.h), nor how they
// find each other (comm/c10d_comm.h).
//
// Each is a program of its own with standard output and error in its log, a process group of its own, so that Ctrl-C reaches only
// this process, and its life bound to ours. When one fails, the others are given some time to say what they saw of it; then all
// are ended, and one line tells who was first.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/file.h"
#include "elastic/salvage_host.h"
#include "rundir/worker_protocol.h"

namespace optimus {

struct WorkersOptions {
  Path program;                      // "/proc/self/exe"
  std::vector<std::string> words;    // its arguments, the name of the program first
  Path run;                          // logs go to its folder logs/, the list to its workers.json
  std::vector<std::string> devices;  // of each worker
  int threads = 1;                   // of each
  std::string host = "127.0.0.1";    // of the store
  int port = 0;
  bool is_etcd = false;
  std::string token{};
  Seconds grace{10};       // for the others, after the first has failed
  Seconds long_grace{10};  // where the others may go on without it: they say themselves when they cannot
  Seconds patience{
      600};  // for one that is stopped, before it counts as failed, or as lost where the others go on
};

class Workers {
 public:
  // Starts them all. Throws UserError when that cannot be done; none is left then.
  explicit Workers(WorkersOptions options);
  // Ends those that still run.
  ~Workers();
  Workers(const Workers&) = delete;

  // Until all have ended; the result of rank 0. `is_interrupted` is asked often: when it is true all are asked to end, once.
  // Throws Interrupted when that was why they ended, and UserError, with one line, when one failed. With a salvage, what is left of the
  // others' state is saved before they end; with a membership, they go on without it where they can.
  Json wait(const std::function<bool()>& is_interrupted, SalvageHost* salvage = nullptr,
            Regrouping* regrouping = nullptr);
  std::vector<WorkerEntry> entries() const;  // of all, by seat

  pid_t pid(int rank) const { return all_[static_cast<std::size_t>(rank)].pid; }

 private:
  struct Worker {
    pid_t pid = 0;
    int pipe = -1;  // its report comes from here
    std::string line;
    std::optional<WorkerReport> report;
    std::optional<int> status;  // as of waitpid
    int order = -1;             // of failing: 0 was first
    bool is_ended_by_us = false;
    std::optional<Deadline> stopped{};  // somebody has stopped it: until when it must go on
    bool is_out = false;                // the others go on without it
  };
  void start(int rank);
  void look(int milliseconds);
  void read_report(Worker& worker);
  void reap(Worker& worker);
  void note_failures();
  void signal_all(int number);
  void end_all();
  void write_list() const;
  void follow_members();
  void forget_those_out();
  void note_lost(int seat);
  std::string how_it_ended(int rank) const;
  Json result_of_first() const;
  bool is_over() const;
  // Whether all that still run are those whom the others have missed: there is nothing to wait for.
  bool only_missing_run() const;
  bool is_others_time_over();
  std::vector<bool> who_is_gone() const;
  std::string why() const;
  std::string describe(int rank) const;

  const WorkersOptions options_;
  RealFileSystem files_;
  std::vector<Worker> all_;  // [seat]
  int num_failed_ = 0;
  std::optional<Deadline> grace_, long_grace_;
  Regrouping* regrouping_ = nullptr;
  int generation_ = 0;  // that the list is of
};

}  // namespace optimus
