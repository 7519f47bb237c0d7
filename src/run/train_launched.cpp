// Implements train_launched.h: the work of rank 0 and of the other ranks. The code that they share is in
// launched_rank.h.
#include "run/train_launched.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/time_stamp.h"
#include "elastic/emergency_checkpoint_watch.h"
#include "elastic/heartbeat.h"
#include "elastic/host_memory.h"
#include "elastic/preemption_notice.h"
#include "engine/device.h"
#include "launch/launched_memory.h"
#include "launch/listed_ranks.h"
#include "launch/rendezvous.h"
#include "observe/progress.h"
#include "plan/layouts.h"
#include "run/end_watch.h"
#include "run/host_facts.h"
#include "run/launched_rank.h"
#include "run/launched_rendezvous.h"
#include "run/process_rank.h"
#include "run/train_rank.h"
#include "run/training.h"
#include "run/worker.h"
#include "rundir/failure_line.h"
#include "rundir/logs.h"
#include "rundir/plan_files.h"
#include "rundir/shared_folder.h"
#include "rundir/store_board.h"

namespace optimus {
namespace {

constexpr Seconds kMinTimeout{2};
constexpr Seconds kReportTimeout{10};  // for other ranks to report after a failure
constexpr Seconds kFinalTimeout{120};  // for other ranks to exit after the last step

// Checks the options against the number of ranks, which the launcher determines. A resumed run keeps its plan
// if it previously had the same number of ranks.
void check_num_ranks(const LaunchedTraining& training) {
  const int size = training.launch.world_size;
  TrainOptions& options = training.options;
  if (options.devices && *options.devices != size)
    throw UserError("--devices is {}, but {} started {} ranks; remove --devices or start {} ranks",
                    *options.devices, training.launch.launcher, size, *options.devices);
  if (!options.resume.empty()) {
    TrainOptions previous_options;
    OptionTable table;
    declare(table, previous_options);
    std::error_code error;
    const Path settings = options.resume / "settings.toml";
    if (std::filesystem::exists(settings, error)) read_config_file(table, settings, {}, Origin::run);
    if (previous_options.devices == size) return;
  }
  training.table.set(*training.table.find("devices"), {std::to_string(size)}, Origin::flag);
}

// --- rank 0

struct Prepared {
  RunSpec spec;
  Path folder;       // absolute path
  std::string kind;  // the device kind: cpu, cuda, or a specific device
};

Prepared prepare(const LaunchedTraining& training) {
  RealFileSystem files;
  TrainOptions& options = training.options;
  check_num_ranks(training);
  Prepared prepared{prepare_run(options, &training.table, files, training.events, true), {}, options.device};
  const TrainSettings& settings = prepared.spec.settings;
  if (num_devices(settings.plan) > training.launch.world_size)
    throw UserError("the plan needs {} devices, but {} started {} ranks", num_devices(settings.plan),
                    training.launch.launcher, training.launch.world_size);
  begin_run_folder(prepared.spec, &training.table, files);
  for (const std::string& note : {settings.devices_note, settings.plan_note})
    if (!note.empty()) training.line.print(note);
  prepared.folder = std::filesystem::absolute(settings.run);
  if (prepared.kind.empty()) prepared.kind = choose_device("").is_cuda() ? "cuda" : "cpu";
  return prepared;
}

// Places the redundant copy of sharded state on another host, if there is one. A plan given by the user is
// not changed.
void place_copies_apart(const LaunchedTraining& training, const std::vector<PresentRank>& ranks,
                        Prepared& prepared) {
  Plan& plan = prepared.spec.settings.plan;
  const bool is_user_plan = training.table.find("plan")->origin > Origin::run;
  if (plan.copy_distance == 0 || is_user_plan) return;
  const int previous_distance = plan.copy_distance;
  plan = with_copies_in_other_domains(std::move(plan), host_numbers(ranks));
  RealFileSystem files;
  if (plan.copy_distance != previous_distance)
    save_plan(files, prepared.folder, plan, newest_epoch(prepared.folder).value_or(0));
}

std::vector<RankOutcome> rank_outcomes(const RendezvousResult& run, const Path& folder) {
  std::vector<RankOutcome> ends;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank)
    ends.push_back(
        {fmt::format("rank {} (process {} on {})", rank, run.ranks[rank].pid, run.ranks[rank].host),
         (folder / log_path(static_cast<int>(rank))).string(),
         {}});
  return ends;
}

void read_reports(const RendezvousResult& run, std::vector<RankOutcome>& ends) {
  for (std::size_t rank = 1; rank < ends.size(); ++rank)
    if (!ends[rank].report) ends[rank].report = published_end(run, static_cast<int>(rank));
}

// Returns for each rank whether it has reported its end. A rank in another process is known to have ended
// only if it has reported.
std::vector<bool> ranks_with_report(const RendezvousResult& run) {
  std::vector<bool> result;
  for (std::size_t rank = 0; rank < run.ranks.size(); ++rank)
    result.push_back(published_end(run, static_cast<int>(rank)).has_value());
  return result;
}

// Waits until the other ranks have reported how they ended. Does not wait if the launcher is ending the run,
// because there is no time for it.
TrainResult collect_ends(const LaunchedTraining& training, const RendezvousResult& run, const Path& folder,
                         const WorkerReport& own, EmergencyCheckpointWatch& emergency_checkpoint,
                         const Deadline& report_deadline) {
  std::vector<RankOutcome> ends = rank_outcomes(run, folder);
  ends[0].report = own;
  // The emergency checkpoint may have used up the time. The other ranks were only just informed that this
  // rank has ended, so they get at least kMinTimeout.
  const Deadline min_deadline = Deadline::after(kMinTimeout, "the other ranks");
  for (int num_queries = 0; !report_deadline.has_passed() || !min_deadline.has_passed(); ++num_queries) {
    read_reports(run, ends);
    if (have_all_reported(ends) || (num_queries > 10 && training.stop.is_requested())) break;
    pause_before_query(num_queries);
  }
  const auto has_ended_as = [&](WorkerReport::End kind) {
    return std::any_of(ends.begin(), ends.end(),
                       [&](const RankOutcome& end) { return end.report && end.report->end == kind; });
  };
  if (has_ended_as(WorkerReport::End::failed) || has_ended_as(WorkerReport::End::lost)) {
    const std::string hint =
        find_host_memory(folder) ? "; --resume will use the newer checkpoints in the hosts' memory" : "";
    const std::string line = failure_line(ends) + emergency_checkpoint.finish() + hint;
    log_failure(folder, line);
    throw_run_failure(line, own.is_user_error);
  }
  remove_host_memory(folder, true);
  if (own.end == WorkerReport::End::interrupted) return {.end = TrainEnd::stopped};
  return parse_train_result(own.result);
}

// Copies rank 0's console output to its log.
class Rank0Log {
 public:
  Rank0Log(const Path& folder, StatusLine& line)
      : file_(std::fopen((folder / log_path(0)).c_str(), "a")), line_(line) {
    line_.log_to(file_);
  }
  ~Rank0Log() {
    line_.log_to(nullptr);
    if (file_ != nullptr) std::fclose(file_);
  }
  Rank0Log(const Rank0Log&) = delete;
  // Never null.
  std::FILE* file() const { return file_ != nullptr ? file_ : stderr; }

 private:
  std::FILE* file_;
  StatusLine& line_;
};

WorkerReport train_rank_0(const LaunchedTraining& training, const Prepared& prepared,
                          const RendezvousResult& rendezvous_result, const std::string& device) {
  const int threads = threads_of(training.options, rendezvous_result, 0);
  set_num_threads(threads);
  const Rank0Log log(prepared.folder, training.line);
  fmt::print(log.file(), "{}rank 0 in process {} on {}\n", time_stamp(), ::getpid(), host_name());
  return report_of_work(
      [&] { return join_comm(rendezvous_result, 0, device); }, log.file(), training.line,
      [&](Comm& comm, StatusLine& line) {
        EndWatch watch(rendezvous_result, comm, training.options.timeout, training.stop);
        StatusLineSink events(line);
        const RankContext rank{
            comm, parse_device(device), threads, events, line, watch.stop_token().with_leave_as_stop(), [&] {
              return board_of(rendezvous_result);
            }};
        return run_with_memory(prepared.spec, prepared.folder, 0,
                               [&] { return watch.guard([&] { return train_rank(prepared.spec, rank); }); });
      });
}

LaunchedEnd run_rank_0_elastically(const LaunchedTraining& training, const Prepared& prepared,
                                   const RendezvousResult& rendezvous_result, const std::string& device) {
  clear_claims(prepared.folder);
  RealFileSystem files;
  value_or_throw(write_atomically(files, run_settings_path(prepared.folder),
                                  run_settings(prepared.spec, training.table).dump(2) + "\n"));
  std::optional<LaunchedElasticRank> elastic_rank(
      std::in_place,
      launched_rank_facts(training, rendezvous_result, prepared.spec, prepared.folder, prepared.kind));
  LaunchedElasticRank& elastic = *elastic_rank;
  WorkerReport report;
  try {
    const Rank0Log log(prepared.folder, training.line);
    report =
        elastic_work(training, prepared.spec, prepared.folder, elastic, rendezvous_result, device, stderr);
  } catch (const ExcludedFromRun&) {
    elastic_rank.reset();  // stops hosting the run
    return {rejoin(training, rendezvous_result, prepared.folder, device), {}};
  }
  (void)elastic.store()->set(rendezvous_result.prefix + worker_report_key(0), text(report));
  elastic.wait_for_others_to_end();
  if (report.end == WorkerReport::End::failed || report.end == WorkerReport::End::lost) {
    const std::string line =
        fmt::format("rank 0 (process {} on {}): {}{}", ::getpid(), host_name(), report.why,
                    elastic.run_host() != nullptr ? elastic.run_host()->finish() : "");
    log_failure(prepared.folder, line);
    throw_run_failure(line, report.is_user_error);
  }
  TrainResult result = report.end == WorkerReport::End::interrupted ? TrainResult{.end = TrainEnd::stopped}
                                                                    : parse_train_result(report.result);
  result.run = prepared.spec.settings.run.string();  // the path as the user gave it
  return {0, std::move(result)};
}

LaunchedEnd run_rank_0(const LaunchedTraining& training) {
  Rendezvous rendezvous(rendezvous_of(training));
  std::optional<Prepared> prepared;
  std::vector<PresentRank> ranks;
  try {
    const auto wait = [&] {
      ranks = rendezvous.wait_for_others([&](const std::string& text) { training.line.print(text); });
    };
    // On a resume, hosts copy their in-memory checkpoints to the shared folder before their ranks join.
    const bool has_memory = !training.options.resume.empty() && find_host_memory(training.options.resume);
    if (has_memory) wait();
    prepared = prepare(training);
    if (!has_memory) wait();
    place_copies_apart(training, ranks, *prepared);
    announce_memory(training.options, prepared->folder, ranks);
  } catch (const ReportedError& error) {
    rendezvous.refuse(error.what());
    throw;
  } catch (const Interrupted&) {
    rendezvous.refuse("interrupted");
    throw;
  }
  std::vector<std::string> devices;
  for (const PresentRank& rank : ranks) devices.push_back(device_of(prepared->kind, rank.local_rank));
  const std::string mark_name = generate_token();
  const FolderMark mark(prepared->folder, mark_name);
  const ListedRanks listed(prepared->folder, ranks, devices);
  Json settings = run_settings(prepared->spec, training.table);
  settings["run"] = prepared->folder.string(), settings["mark"] = mark_name;
  settings["device"] = prepared->kind, settings["static"] = training.options.is_static;
  const RendezvousResult rendezvous_result = rendezvous.send_join_replies(settings);
  if (!training.options.is_static)
    return run_rank_0_elastically(training, *prepared, rendezvous_result, devices[0]);
  RealFileSystem files;
  const std::unique_ptr<Board> board = board_of(rendezvous_result);
  EmergencyCheckpointWatch emergency_checkpoint(
      *board, files, emergency_checkpoint_options(prepared->spec, prepared->folder),
      [&] { return ranks_with_report(rendezvous_result); }, training.stop);
  const WorkerReport report = train_rank_0(training, *prepared, rendezvous_result, devices[0]);
  const Deadline report_deadline = Deadline::after(
      report.end == WorkerReport::End::done ? kFinalTimeout : kReportTimeout, "the other ranks");
  emergency_checkpoint.end();
  publish_end(rendezvous_result, 0, report);
  TrainResult result = collect_ends(training, rendezvous_result, prepared->folder, report,
                                    emergency_checkpoint, report_deadline);
  result.run = prepared->spec.settings.run.string();  // the path as the user gave it
  return {0, std::move(result)};
}

// --- the other ranks

void redirect_output(const Path& log) {
  const int file = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (file < 0) return;  // then the rank continues to write to the launcher's output
  std::fflush(stdout), std::fflush(stderr);
  ::dup2(file, STDOUT_FILENO), ::dup2(file, STDERR_FILENO);
  ::close(file);
}

// Checks that this host has the same run folder as rank 0, and redirects this rank's output to its log in
// that folder.
Path open_shared_folder(const LaunchedTraining& training, const RendezvousResult& run,
                        const JsonView& settings) {
  const Path folder = settings.at("run").text();
  expect_same_folder(folder, settings.at("mark").text(), run.ranks[0].host, [&] {
    if (training.stop.is_requested()) throw Interrupted{};
  });
  redirect_output(folder / log_path(training.launch.rank));
  return folder;
}

TrainResult train_other_rank(const LaunchedTraining& training, const RendezvousResult& run,
                             const std::string& device, EndWatch& watch, Comm& comm, StatusLine& line) {
  const int rank = training.launch.rank;
  const JsonView settings(run.settings, "rank 0's settings");
  const Path folder = open_shared_folder(training, run, settings);
  const bool is_gpu = parse_device(device).is_cuda();
  const RunSpec spec = read_run_settings(folder, settings, is_gpu, training.options, training.table);
  const int threads = threads_of(training.options, run, rank);
  set_num_threads(threads);
  StatusLineSink events(line);
  const RankContext context{
      comm, parse_device(device), threads, events, line, watch.stop_token().with_leave_as_stop(), [&] {
        return board_of(run);
      }};
  return run_with_memory(spec, folder, rank,
                         [&] { return watch.guard([&] { return train_rank(spec, context); }); });
}

// Ignores errors, because rank 0 reports what is wrong if a run cannot be read.
void export_memory(const Path& run) {
  try {
    if (!run.empty()) export_host_memory(run);
  } catch (const ReportedError&) {
  }
}

int run_other_rank_elastically(const LaunchedTraining& training, const RendezvousResult& run,
                               const std::string& device) {
  const int rank = training.launch.rank;
  const JsonView settings(run.settings, "rank 0's settings");
  const Path folder = open_shared_folder(training, run, settings);
  const RunSpec spec =
      read_run_settings(folder, settings, parse_device(device).is_cuda(), training.options, training.table);
  LaunchedElasticRank elastic(launched_rank_facts(training, run, spec, folder, settings.at("device").text()));
  const WorkerReport report = elastic_work(training, spec, folder, elastic, run, device, stderr);
  if (!report.why.empty()) fmt::print(stderr, "{}\n", report.why);
  (void)elastic.store()->set(run.prefix + worker_report_key(rank), text(report));
  elastic.wait_for_others_to_end();
  return exit_code(report.end);
}

int run_other_rank(const LaunchedTraining& training) {
  const int rank = training.launch.rank;
  RendezvousResult run;
  try {
    export_memory(training.options.resume);
    run = join_rendezvous(rendezvous_of(training));
  } catch (const RankRefused&) {
    return 1;  // rank 0 reports the reason
  }
  const int launcher_errors = ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 64);
  const std::string device =
      device_of(JsonView(run.settings, "rank 0's settings").at("device").text(), training.launch.local_rank);
  if (!JsonView(run.settings, "rank 0's settings").at("static").boolean()) {
    try {
      return run_other_rank_elastically(training, run, device);
    } catch (const ExcludedFromRun&) {
      return rejoin(training, run, JsonView(run.settings, "rank 0's settings").at("run").text(), device);
    } catch (const ReportedError& error) {  // this rank failed to start
      publish_end(run, rank, {WorkerReport::End::failed, error.what(), {}, {}});
      (void)run.store->set(run.prefix + lost_key(rank), "");
      throw;
    }
  }
  const WorkerReport report =
      report_of_work([&] { return join_comm(run, rank, device); }, stderr, training.line,
                     [&](Comm& comm, StatusLine& line) {
                       EndWatch watch(run, comm, training.options.timeout, training.stop);
                       return train_other_rank(training, run, device, watch, comm, line);
                     });
  if (!report.why.empty()) fmt::print(stderr, "{}\n", report.why);
  // If the report cannot be delivered through the store, it is printed to the launcher's error output.
  const bool is_published = publish_end(run, rank, report);
  if (!is_published && !report.why.empty() && launcher_errors >= 0) {
    const char* const store_hint =
        run.address.is_etcd ? "" : "; cannot reach rank 0, which hosts the run's store";
    const std::string line =
        fmt::format("optimus: rank {} on {}: {}{}\n", rank, host_name(), report.why, store_hint);
    (void)!::write(launcher_errors, line.data(), line.size());
  }
  if (launcher_errors >= 0) ::close(launcher_errors);
  return exit_code(report.end);
}

}  // namespace

LaunchedEnd train_launched(const LaunchedTraining& training) {
  if (const auto parent = process_environment()("OPTIMUS_LAUNCH_PARENT")) {
    int parent_id = 0;
    option_value::parse(parent_id, *parent, "OPTIMUS_LAUNCH_PARENT");
    end_with_parent(parent_id);
  }
  LaunchedTraining training_with_notice = training;
  training_with_notice.stop =
      with_preemption_notice(training.stop, training.options.notice, process_environment());
  if (training.launch.rank == 0) return run_rank_0(training_with_notice);
  return {run_other_rank(training_with_notice), {}};
}

}  // namespace optimus
