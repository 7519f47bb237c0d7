// Implements workers.h.
#include "launch/workers.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/event.h"
#include "base/text.h"
#include "launch/spawn_settings.h"
#include "rundir/logs.h"

extern char** environ;

namespace optimus {
namespace {

constexpr int kPollMilliseconds = 50;
constexpr std::size_t kMaxReportBytes = 1 << 20;

// Converts arguments or environment variables to the form that posix_spawn() expects.
std::vector<char*> pointers(std::vector<std::string>& arguments) {
  std::vector<char*> result;
  for (std::string& word : arguments) result.push_back(word.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> environment_with(const std::string& worker_spec) {
  std::vector<std::string> result = {std::string(kWorkerVariable) + "=" + worker_spec};
  const std::string_view quiet = "TORCH_CPP_LOG_LEVEL";
  bool has_level = false;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    has_level |= starts_with(*variable, quiet);
    if (!starts_with(*variable, std::string(kWorkerVariable) + "=")) result.emplace_back(*variable);
  }
  if (!has_level) result.push_back(std::string(quiet) + "=ERROR");
  return result;
}

// A worker writes its report to descriptor 3 and text for the user to descriptor 4. These stay open in the
// worker. All other descriptors of this process are closed in the worker.
constexpr int kReportFile = 3, kTerminalFile = 4;

pid_t spawn(const WorkersOptions& options, int rank, int report, const std::string& log) {
  WorkerSpec spec;
  spec.rank = rank, spec.size = static_cast<int>(options.devices.size());
  spec.host = options.host, spec.port = options.port, spec.is_etcd = options.is_etcd;
  spec.token = options.token, spec.run = options.run;
  spec.device = options.devices[static_cast<std::size_t>(rank)], spec.threads = options.threads;
  spec.parent = ::getpid(), spec.report = kReportFile, spec.terminal = kTerminalFile;
  SpawnSettings settings;
  // Duplicates the descriptors to the fixed numbers above.
  ::posix_spawn_file_actions_adddup2(&settings.actions, report, kReportFile);
  ::posix_spawn_file_actions_adddup2(&settings.actions, STDERR_FILENO, kTerminalFile);
  ::posix_spawn_file_actions_addopen(&settings.actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&settings.actions, STDOUT_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_APPEND, 0644);
  ::posix_spawn_file_actions_adddup2(&settings.actions, STDOUT_FILENO, STDERR_FILENO);
  ::posix_spawn_file_actions_addclosefrom_np(&settings.actions, kTerminalFile + 1);
  ::posix_spawnattr_setflags(&settings.attributes, POSIX_SPAWN_SETPGROUP);
  ::posix_spawnattr_setpgroup(&settings.attributes, 0);
  std::vector<std::string> arguments = options.arguments, variables = environment_with(text(spec));
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, options.program.c_str(), &settings.actions, &settings.attributes,
                                  pointers(arguments).data(), pointers(variables).data());
  if (error != 0) throw RuntimeFailure("cannot start worker {}: {}", rank, ::strerror(error));
  return pid;
}

// Whether a process that was not started here is still running.
bool is_running(const WorkerEntry& entry) {
  if (entry.host != host_name()) return true;  // this can only be checked on the host of the process
  std::ifstream file(fmt::format("/proc/{}/stat", entry.pid));
  std::string stat;
  if (!std::getline(file, stat)) return false;
  const std::size_t end = stat.rfind(')');
  return end == std::string::npos || end + 2 >= stat.size() ||
         std::string("ZXT").find(stat[end + 2]) == std::string::npos;
}

}  // namespace

Workers::Workers(WorkersOptions options) : options_(std::move(options)), workers_(options_.devices.size()) {
  value_or_throw(files_.create_folders(options_.run / "logs"));
  try {
    for (std::size_t rank = 0; rank < workers_.size(); ++rank) start(static_cast<int>(rank));
    write_list();
  } catch (...) {
    end_all();
    throw;
  }
}

Workers::~Workers() {
  end_all();
  write_list();
}

void Workers::start(int rank) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw RuntimeFailure("worker {}: cannot create a pipe: {}", rank, ::strerror(errno));
  // dup2() of a descriptor to itself would keep its close-on-exec flag.
  const int high_descriptor = ::fcntl(ends[1], F_DUPFD_CLOEXEC, 64);
  ::close(ends[1]);
  Worker& worker = workers_[static_cast<std::size_t>(rank)];
  worker.pipe = ends[0];
  ::fcntl(worker.pipe, F_SETFL, O_NONBLOCK);
  try {
    worker.pid = spawn(options_, rank, high_descriptor, (options_.run / log_path(rank)).string());
  } catch (...) {
    ::close(high_descriptor);
    throw;
  }
  ::close(high_descriptor);
}

std::vector<WorkerEntry> Workers::entries() const {
  std::vector<WorkerEntry> result;
  for (std::size_t rank = 0; rank < workers_.size(); ++rank)
    result.push_back({static_cast<int>(rank), workers_[rank].pid, host_name(), options_.devices[rank],
                      log_path(static_cast<int>(rank))});
  return result;
}

void Workers::write_list() const {
  std::vector<WorkerEntry> live = coordinator_ != nullptr ? coordinator_->members() : entries();
  std::erase_if(live, [&](const WorkerEntry& entry) {
    return std::any_of(workers_.begin(), workers_.end(),
                       [&](const Worker& worker) { return worker.pid == entry.pid && worker.status; });
  });
  RealFileSystem files;
  // Write errors must not end the training.
  (void)write_atomically(files, options_.run / "workers.json", workers_json(live));
}

// The remaining workers may all have joined later and not have been started here.
bool Workers::has_ended() const {
  const bool have_all_ended = std::all_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.status.has_value() || worker.is_excluded;
  });
  if (!have_all_ended || coordinator_ == nullptr) return have_all_ended;
  const std::vector<int> remaining_ids = coordinator_->remaining_workers();
  return std::all_of(remaining_ids.begin(), remaining_ids.end(), [&](int worker_id) {
    return worker_id < static_cast<int>(workers_.size()) || coordinator_->report_of(worker_id) ||
           !is_running(coordinator_->workers()[static_cast<std::size_t>(worker_id)]);
  });
}

void Workers::read_report(Worker& worker) {
  char block[4096];
  ssize_t size = 0;
  while (worker.pipe >= 0 && (size = ::read(worker.pipe, block, sizeof block)) > 0)
    if (worker.line.size() < kMaxReportBytes) worker.line.append(block, static_cast<std::size_t>(size));
  if (worker.pipe >= 0 && size == 0) ::close(worker.pipe), worker.pipe = -1;
  if (worker.report || !ends_with(worker.line, "\n")) return;
  try {
    worker.report = parse_worker_report(worker.line);
  } catch (const UserError&) {  // the line is not a report, so only the exit status is used
  }
}

void Workers::reap(Worker& worker) {
  int status = 0;
  if (worker.status || ::waitpid(worker.pid, &status, WNOHANG | WUNTRACED | WCONTINUED) != worker.pid) return;
  if (WIFSTOPPED(status)) worker.stopped = Deadline::after(options_.timeout, "a stopped worker");
  if (WIFCONTINUED(status)) worker.stopped.reset();
  if (WIFSTOPPED(status) || WIFCONTINUED(status)) return;
  read_report(worker);
  worker.status = status;
  worker.stopped.reset();
  write_list();
}

// Assigns failure_order in the order of detection. failure_text() prefers workers that failed to those that
// only lost contact with others.
void Workers::note_failures() {
  for (Worker& worker : workers_) {
    if (worker.failure_order >= 0 || worker.is_ended_by_us || worker.is_excluded) continue;
    const bool has_reported = worker.report && (worker.report->end == WorkerReport::End::failed ||
                                                worker.report->end == WorkerReport::End::lost);
    const bool has_died = worker.status && !worker.report;
    // During startup, the other workers wait a long time for a stopped worker. During a step, they would
    // already have reported it.
    const bool is_silent = worker.stopped && worker.stopped->has_passed();
    if (has_reported || has_died || is_silent) worker.failure_order = num_failed_++;
  }
}

void Workers::poll(int milliseconds) {
  std::vector<pollfd> files;
  for (const Worker& worker : workers_)
    if (worker.pipe >= 0) files.push_back({worker.pipe, POLLIN, 0});
  ::poll(files.data(), files.size(), milliseconds);
  // Processes are reaped first, so that the report of an exited process is complete when it is read.
  for (Worker& worker : workers_) reap(worker);
  for (Worker& worker : workers_) read_report(worker);
  note_failures();
}

void Workers::signal_all(int number) {
  for (const Worker& worker : workers_)
    if (worker.pid > 0 && !worker.status) ::kill(worker.pid, number);
}

void Workers::end_all() {
  for (Worker& worker : workers_) {
    if (worker.pid > 0 && !worker.status) {
      worker.is_ended_by_us = true;
      ::kill(-worker.pid, SIGKILL), ::kill(worker.pid, SIGKILL);
      int status = 0;
      if (::waitpid(worker.pid, &status, 0) == worker.pid) worker.status = status;
    }
    if (worker.pipe >= 0) ::close(worker.pipe), worker.pipe = -1;
  }
}

std::vector<bool> Workers::find_lost_workers() const {
  std::vector<bool> result;
  for (const Worker& worker : workers_)
    result.push_back(worker.status || worker.is_excluded || (worker.stopped && worker.stopped->has_passed()));
  if (coordinator_ == nullptr) return result;
  for (std::size_t worker_id = workers_.size(); worker_id < coordinator_->workers().size(); ++worker_id)
    result.push_back(!is_running(coordinator_->workers()[worker_id]));
  for (const int worker_id : coordinator_->remaining_workers())
    if (!coordinator_->hang_of(worker_id).empty()) result[static_cast<std::size_t>(worker_id)] = true;
  return result;
}

void Workers::record_lost(int worker_id) {
  const Membership& members = coordinator_->membership();
  const auto rank =
      std::find(members.worker_ids.begin(), members.worker_ids.end(), worker_id) - members.worker_ids.begin();
  const WorkerEntry& entry = coordinator_->workers()[static_cast<std::size_t>(worker_id)];
  std::string description = "has ended";
  if (worker_id < static_cast<int>(workers_.size())) description = describe_end(worker_id);
  if (const std::string hang = coordinator_->hang_of(worker_id); !hang.empty())
    description = "hangs: " + hang;
  coordinator_->record_lost(
      worker_id, fmt::format("rank {} (process {} on {} {})", rank, entry.pid, entry.host, description));
}

// Records lost workers and detects join requests.
void Workers::track_members() {
  coordinator_->poll();
  const std::vector<bool> is_gone = find_lost_workers();
  bool is_worker_lost = false;
  for (const int worker_id : coordinator_->remaining_workers()) {
    if (!is_gone[static_cast<std::size_t>(worker_id)]) continue;
    record_lost(worker_id);
    const Worker* const child = worker_id < static_cast<int>(workers_.size())
                                    ? &workers_[static_cast<std::size_t>(worker_id)]
                                    : nullptr;
    is_worker_lost |= child != nullptr ? child->stopped || (child->status && !child->report)
                                       : !coordinator_->report_of(worker_id).has_value();
  }
  // Notifies the other workers, because they may not detect the loss. The connections of a hanging worker
  // stay open, and a worker that has just started may have no connections.
  if (is_worker_lost) coordinator_->request_survivor_states();
}

void Workers::drop_excluded() {
  generation_ = coordinator_->membership().generation;
  num_failed_ = 0, grace_.reset(), long_grace_.reset();
  for (std::size_t worker_id = 0; worker_id < workers_.size(); ++worker_id) {
    Worker& worker = workers_[worker_id];
    if (!coordinator_->is_member(static_cast<int>(worker_id))) worker.is_excluded = true;
    worker.failure_order = -1;
  }
  write_list();
}

TrainResult Workers::wait(const StopToken& stop, EmergencyCheckpointHost* emergency_checkpoint,
                          MembershipCoordinator* coordinator) {
  coordinator_ = coordinator;
  const std::shared_ptr<void> coordinator_reset(nullptr, [this](void*) { coordinator_ = nullptr; });
  bool is_asked_to_end = false;
  while (!has_ended()) {
    if (!is_asked_to_end && stop.is_requested()) {
      is_asked_to_end = true, signal_all(SIGINT);
      if (coordinator_ != nullptr) coordinator_->ask_to_end();
    }
    poll(kPollMilliseconds);
    if (coordinator_ != nullptr) track_members();
    if (emergency_checkpoint != nullptr && emergency_checkpoint->poll(find_lost_workers())) continue;
    if (coordinator_ != nullptr && coordinator_->membership().generation != generation_) drop_excluded();
    if (num_failed_ > 0 && has_grace_expired()) end_all();
  }
  poll(0);
  if (num_failed_ > 0) {
    const std::string line =
        failure_text() + (emergency_checkpoint != nullptr ? emergency_checkpoint->finish() : "");
    log_failure(options_.run, line);
    const std::optional<int> cause = first_failed();
    const auto report = cause ? workers_[static_cast<std::size_t>(*cause)].report : std::nullopt;
    throw_run_failure(line, report && report->is_user_error);
  }
  for (const Worker& worker : workers_)  // a worker may be interrupted before its first step
    if (worker.report && worker.report->end == WorkerReport::End::interrupted)
      return {.end = TrainEnd::stopped};
  return result_of_rank_0();
}

// The result of the worker that was rank 0 at the end. This worker may not have been started here.
TrainResult Workers::result_of_rank_0() const {
  const int worker_id = coordinator_ == nullptr ? 0 : coordinator_->membership().worker_ids.front();
  if (worker_id < static_cast<int>(workers_.size())) {
    const Worker& worker = workers_[static_cast<std::size_t>(worker_id)];
    if (!worker.report) throw RuntimeFailure("worker {} did not report how the run ended", worker_id);
    return parse_train_result(worker.report->result);
  }
  const std::optional<WorkerReport> report = coordinator_->wait_for_report(worker_id);
  if (!report) throw RuntimeFailure("worker {} did not report how the run ended", worker_id);
  if (report->end == WorkerReport::End::interrupted) return {.end = TrainEnd::stopped};
  if (report->end != WorkerReport::End::done)
    throw_run_failure(fmt::format("worker {}: {}", worker_id, report->why), report->is_user_error);
  return parse_train_result(report->result);
}

// Whether the time for reports after the first failure has passed. If workers may continue without the failed
// one, they have more time, because they will report if they cannot continue.
bool Workers::has_grace_expired() {
  const bool has_reported_end = std::any_of(workers_.begin(), workers_.end(), [](const Worker& worker) {
    return worker.failure_order >= 0 && worker.report.has_value();
  });
  const bool can_continue = coordinator_ != nullptr && coordinator_->has_begun() && !has_reported_end;
  std::optional<Deadline>& grace = can_continue ? long_grace_ : grace_;
  if (!grace)
    grace = Deadline::after(&grace == &grace_ ? options_.grace : options_.long_grace, "the other workers");
  return grace->has_passed() || do_only_missing_run();
}

bool Workers::do_only_missing_run() const {
  std::set<int> missing;
  for (const Worker& worker : workers_)
    if (worker.report) missing.insert(worker.report->missing.begin(), worker.report->missing.end());
  for (std::size_t rank = 0; rank < workers_.size(); ++rank)
    if (!workers_[rank].status && !missing.contains(static_cast<int>(rank))) return false;
  return true;
}

std::string Workers::describe_end(int rank) const {
  const Worker& worker = workers_[static_cast<std::size_t>(rank)];
  if (!worker.status) return "was stopped";
  const int status = *worker.status;
  return WIFSIGNALED(status)
             ? fmt::format("was killed by signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)))
             : fmt::format("exited with code {}", WEXITSTATUS(status));
}

std::string Workers::describe(int rank) const {
  const Worker& worker = workers_[static_cast<std::size_t>(rank)];
  return fmt::format("rank {} (process {} on {})", rank, worker.pid, host_name());
}

// The first rank that failed, except ranks that only lost contact with others.
std::optional<int> Workers::first_failed() const {
  std::optional<int> first;
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    const Worker& worker = workers_[rank];
    const bool is_lost = worker.report && worker.report->end == WorkerReport::End::lost;
    if (worker.failure_order >= 0 && !is_lost &&
        (!first || worker.failure_order < workers_[static_cast<std::size_t>(*first)].failure_order))
      first = static_cast<int>(rank);
  }
  return first;
}

// Describes which rank failed, was killed or does not respond, and what another rank observed.
std::string Workers::failure_text() const {
  const auto log = [&](int rank) { return (options_.run / log_path(rank)).string(); };
  std::map<int, int> missed_counts;
  std::string observed_by;
  for (std::size_t rank = 0; rank < workers_.size(); ++rank) {
    const std::optional<WorkerReport>& report = workers_[rank].report;
    if (!report || report->end != WorkerReport::End::lost) continue;
    for (const int missing : report->missing) ++missed_counts[missing];
    if (observed_by.empty()) observed_by = fmt::format("; rank {} reported: {}", rank, report->why);
  }
  if (const std::optional<int> first = first_failed()) {
    const int cause = *first;
    const Worker& worker = workers_[static_cast<std::size_t>(cause)];
    if (worker.stopped)
      return fmt::format("{} does not respond: it was stopped by a signal (SIGSTOP); its log is {}{}",
                         describe(cause), log(cause), observed_by);
    if (worker.report) return fmt::format("{}: {}{}", describe(cause), worker.report->why, observed_by);
    const std::string end_description = describe_end(cause);
    // Mentions the other ranks that exited in the same way, because the cause may be the same.
    std::vector<int> similar_ranks;
    for (std::size_t rank = 0; rank < workers_.size(); ++rank)
      if (static_cast<int>(rank) != cause && workers_[rank].failure_order >= 0 && !workers_[rank].report)
        similar_ranks.push_back(static_cast<int>(rank));
    const std::string similar_text =
        similar_ranks.empty() ? ""
                              : fmt::format(", as did rank{} {}", similar_ranks.size() == 1 ? "" : "s",
                                            fmt::join(similar_ranks, ", "));
    return fmt::format("{} {}{}; its log is {}{}", describe(cause), end_description, similar_text, log(cause),
                       observed_by);
  }
  const auto suspect = std::max_element(missed_counts.begin(), missed_counts.end(),
                                        [](const auto& a, const auto& b) { return a.second < b.second; });
  if (suspect != missed_counts.end() && suspect->first < static_cast<int>(workers_.size()))
    return fmt::format("{} does not respond; its log is {}{}", describe(suspect->first), log(suspect->first),
                       observed_by);
  return "the workers lost contact with each other" + observed_by;
}

}  // namespace optimus
