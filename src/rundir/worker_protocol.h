// What the process that starts a run and its workers tell each other: where a worker stands (an environment variable), the run's
// settings (a file in its folder), and how a worker ended (a line through a pipe). Not how processes are started (workers.h) nor
// what a worker does (worker.h).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/options.h"
#include "cluster/launcher.h"

namespace optimus {

// Set by the starting process for each of its workers, and by nobody else.
inline constexpr const char* kWorkerVariable = "OPTIMUS_WORKER";

// Tells optimus-engine that the program at the other end of its standard input is its host (src/api).
inline constexpr const char* kHostVariable = "OPTIMUS_HOSTED";

struct WorkerPlace {
  int rank = 0, size = 1;
  std::string host = "127.0.0.1";  // of the store
  int port = 0;
  bool is_etcd = false;
  std::string token;
  Path run;
  std::string device;  // cpu, cuda:1
  int threads = 1;
  int parent = 0;     // process id of who started it
  int report = -1;    // an open file for the report
  int terminal = -1;  // an open file that a person reads, for whoever is rank 0; -1: there is none
};
std::string text(const WorkerPlace& place);
// Nothing when this process is no worker. Throws UserError when the variable makes no sense.
std::optional<WorkerPlace> worker_place(const Environment& environment);
Environment process_environment();

struct WorkerReport {
  // failed: by itself. lost: because others did not answer.
  enum class End { done, interrupted, failed, lost };
  End end = End::done;
  std::string why;           // failed, lost: one line
  std::vector<int> missing;  // lost: ranks that did not answer
  Json result;               // done: whatever the work gives
};
std::string text(const WorkerReport& report);  // one line
// Throws UserError when it is no report.
WorkerReport parse_worker_report(const std::string& line);

// Every option with its value and where that came from, and back; so that a worker sees exactly what was resolved.
Json hand_over(const OptionTable& table);
// `source` names the file in errors.
void take_over(OptionTable& table, const Json& options, const std::string& source);

// The member of `workers` in workers.json, which lists all live workers.
struct WorkerEntry {
  int rank = 0, pid = 0;
  std::string host, device;
  Path log;  // in the run's folder
};
Path log_path(int rank);
std::string workers_json(const std::vector<WorkerEntry>& workers);
std::string host_name();

}  // namespace optimus
