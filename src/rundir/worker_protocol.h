// Data that a launching process exchanges with its workers: the description of a worker (in an environment
// variable), the settings of the run (in a file in its folder), and the final report of a worker (one line
// through a pipe). launch/workers.h starts the processes, and run/worker.h does the work of a worker.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "base/options.h"
#include "cluster/launcher.h"

namespace optimus {

// The launching process sets this variable for each of its workers.
inline constexpr const char* kWorkerVariable = "OPTIMUS_WORKER";

// Set for optimus-engine if it is controlled through its standard input by a host program (src/api).
inline constexpr const char* kHostVariable = "OPTIMUS_HOSTED";

// If the engine fails, its result reports the kind of failure to the host program: {"failure": "user"} or
// {"failure": "runtime"}. The message is written to standard error.
inline constexpr const char *kFailureKey = "failure", *kUserFailure = "user", *kRuntimeFailure = "runtime";

struct WorkerSpec {
  int rank = 0, size = 1;
  std::string host = "127.0.0.1";  // host of the store
  int port = 0;
  bool is_etcd = false;
  std::string token;
  Path run;
  std::string device;  // cpu, cuda:1
  int threads = 1;
  int parent = 0;     // process id of the starting process
  int report = -1;    // file descriptor for the report
  int terminal = -1;  // file descriptor of the user's terminal, for rank 0; -1 if there is none
};
std::string text(const WorkerSpec& spec);
// Returns nullopt if this process is not a worker. Throws UserError if the variable is invalid.
std::optional<WorkerSpec> worker_spec(const Environment& environment);
Environment process_environment();

struct WorkerReport {
  // `failed`: the worker exited because of an error. `lost`: it exited because other ranks did not respond.
  enum class End { done, interrupted, failed, lost };
  End end = End::done;
  std::string why;             // one line, for `failed` and `lost`
  std::vector<int> missing;    // ranks that did not respond, for `lost`
  Json result;                 // the result of the work, for `done`
  bool is_user_error = false;  // for `failed`: a mistake of the user caused it
};
std::string text(const WorkerReport& report);  // one line
// Throws UserError if the line is not a report.
WorkerReport parse_worker_report(const std::string& line);
// Throws UserError if the failure of the run was caused by a user mistake, otherwise RuntimeFailure.
[[noreturn]] void throw_run_failure(const std::string& line, bool is_user_error);

// Serialize and restore all options with their values and origins, so that a worker uses exactly the resolved
// settings.
Json serialize_options(const OptionTable& table);
// `source` is the file name for error messages.
void restore_options(OptionTable& table, const Json& options, const std::string& source);

// An entry in the list `workers` of workers.json, which contains all live workers.
struct WorkerEntry {
  int rank = 0, pid = 0;
  std::string host, device;
  Path log;  // relative to the run's folder
};
Path log_path(int rank);
std::string workers_json(const std::vector<WorkerEntry>& workers);
std::string host_name();

}  // namespace optimus
