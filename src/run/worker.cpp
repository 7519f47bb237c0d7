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
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t size = ::write(file, line.data() + done, line.size() - done);
    if (size <= 0) return;  // the reader has ended
    done += static_cast<std::size_t>(size);
  }
}

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};

std::unique_ptr<Comm> join(const WorkerSpec& place) {
  return value_or_throw(make_process_comm(
      {.rank = place.rank,
       .size = place.size,
       .store = {.host = place.host, .port = place.port, .token = place.token, .is_etcd = place.is_etcd},
       .device = parse_device(place.device)},
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

// If the parent ended before this call, no signal would arrive.
void end_with_parent(int parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(1);
}

int run_as_worker(const WorkerSpec& place, const WorkerBody& body) {
  end_with_parent(place.parent);
  std::signal(SIGPIPE, SIG_IGN);
  for (const int file : {place.report, place.terminal})
    if (file >= 0) ::fcntl(file, F_SETFD, FD_CLOEXEC);
  set_num_threads(place.threads);
  fmt::print(stderr, "{}rank {} of {}, process {} on {}, {}\n", time_stamp(), place.rank, place.size,
             ::getpid(), host_name(), place.device);
  const std::unique_ptr<std::FILE, Closer> terminal(place.terminal >= 0 ? ::fdopen(place.terminal, "w")
                                                                        : nullptr);
  StatusLine line = StatusLine::for_log(stderr, terminal.get());
  if (place.rank == 0) line.switch_to_console();
  const WorkerReport report = report_of_work([&] { return join(place); }, stderr, line, body);
  if (!report.why.empty()) fmt::print(stderr, "{}{}\n", time_stamp(), report.why);
  send_report(place.report, report);
  return exit_code(report.end);
}

StoreAddress store_place(const WorkerSpec& place) {
  return {.host = place.host, .port = place.port, .token = place.token, .is_etcd = place.is_etcd};
}

std::unique_ptr<Board> open_board(const StoreAddress& place) {
  constexpr Seconds kTimeout{5};
  Outcome<std::unique_ptr<Board>> board =
      StoreBoard::open(place, Deadline::after(kTimeout, "the run's store"));
  if (board) return std::move(*board);
  fmt::print(stderr, "{}{}\n", time_stamp(), board.error().why);
  return nullptr;
}

}  // namespace optimus
