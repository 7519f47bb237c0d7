// Implements worker.h.
#include "run/worker.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "base/time_stamp.h"
#include "comm/c10d_comm.h"
#include "engine/device.h"
#include "rundir/store_board.h"

namespace optimus {
namespace {

void send_report(int file, const WorkerReport& report) {
  const std::string line = text(report) + "\n";
  for (std::size_t num_written = 0; num_written < line.size();) {
    const ssize_t size = ::write(file, line.data() + num_written, line.size() - num_written);
    if (size <= 0) return;  // the reader has exited
    num_written += static_cast<std::size_t>(size);
  }
}

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::unique_ptr<Comm> join(const WorkerSpec& worker) {
  return value_or_throw(make_process_comm(
      {.rank = worker.rank,
       .size = worker.size,
       .store = {.host = worker.host, .port = worker.port, .token = worker.token, .is_etcd = worker.is_etcd},
       .device = parse_device(worker.device)},
      Deadline::after(kStartTimeout, "joining the run")));
}

}  // namespace

WorkerReport report_of_work(const std::function<std::unique_ptr<Comm>()>& join_run, std::FILE* log,
                            StatusLine& line, const WorkerBody& body) {
  std::unique_ptr<Comm> comm;
  try {
    comm = join_run();
    const TrainResult result = body(*comm, line);
    const bool is_stopped = result.end == TrainEnd::stopped;
    return {is_stopped ? WorkerReport::End::interrupted : WorkerReport::End::done, "", {}, serialize(result)};
  } catch (const Interrupted&) {  // before the first step
    return {WorkerReport::End::interrupted, "", {}, {}};
  } catch (const PeersLost& error) {
    fmt::print(log, "{}", comm->flight_log().text());
    return {WorkerReport::End::lost, error.what(), error.failure.missing, {}};
  } catch (const ReportedError& error) {
    return {
        WorkerReport::End::failed, error.what(), {}, {}, dynamic_cast<const UserError*>(&error) != nullptr};
  } catch (const std::bad_alloc&) {
    return {WorkerReport::End::failed, "out of memory", {}, {}};
  } catch (const std::exception& error) {
    return {WorkerReport::End::failed, fmt::format("internal error: {}", error.what()), {}, {}};
  }
}

int exit_code(WorkerReport::End end) {
  switch (end) {
    case WorkerReport::End::done:
      return 0;
    case WorkerReport::End::interrupted:
      return 130;
    case WorkerReport::End::failed:
    case WorkerReport::End::lost:
      return 1;
  }
  return 1;
}

// If the parent exited before this call, no signal would arrive.
void end_with_parent(int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
}

int run_as_worker(const WorkerSpec& worker, const WorkerBody& body) {
  end_with_parent(worker.parent);
  std::signal(SIGPIPE, SIG_IGN);
  for (const int file : {worker.report, worker.terminal})
    if (file >= 0) ::fcntl(file, F_SETFD, FD_CLOEXEC);
  set_num_threads(worker.threads);
  fmt::print(stderr, "{}rank {} of {}, process {} on {}, {}\n", time_stamp(), worker.rank, worker.size,
             ::getpid(), host_name(), worker.device);
  const std::unique_ptr<std::FILE, Closer> terminal(worker.terminal >= 0 ? ::fdopen(worker.terminal, "w")
                                                                         : nullptr);
  StatusLine line = StatusLine::for_log(stderr, terminal.get());
  if (worker.rank == 0) line.switch_to_console();
  const WorkerReport report = report_of_work([&] { return join(worker); }, stderr, line, body);
  if (!report.why.empty()) fmt::print(stderr, "{}{}\n", time_stamp(), report.why);
  send_report(worker.report, report);
  return exit_code(report.end);
}

StoreAddress store_address_of(const WorkerSpec& worker) {
  return {.host = worker.host, .port = worker.port, .token = worker.token, .is_etcd = worker.is_etcd};
}

std::unique_ptr<Board> open_board(const StoreAddress& address) {
  constexpr Seconds kTimeout{5};
  Outcome<std::unique_ptr<Board>> board =
      StoreBoard::open(address, Deadline::after(kTimeout, "the run's store"));
  if (board) return std::move(*board);
  fmt::print(stderr, "{}{}\n", time_stamp(), board.error().why);
  return nullptr;
}

}  // namespace optimus
