// Ranks as real processes: this program starts itself with one test that acts as a rank. Each rank checks its
// own results; some ranks are killed, stopped or exit in the middle of an operation, and the others must
// report that in time.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/temporary_folder.h"
#include "comm/comm_checks.h"
#include "comm/spawn_self.h"

namespace optimus::test {
namespace {

using Clock = std::chrono::steady_clock;
constexpr double kDeadline = 1.5;  // of the operations in which a rank goes missing

// Repeats an operation until it fails, then writes the failure as one line.
void until_failure(Comm& comm, CommKind kind, std::int64_t count,
                   const std::function<void(int step)>& before) {
  must(comm.connect(0, {{kWorld}}, soon()));
  const at::Tensor part = at::empty({count}, at::kLong), whole = at::empty({comm.size() * count}, at::kLong);
  for (int step = 0;; ++step) {
    before(step);
    if (step == 3) std::ofstream(variable("OPTIMUS_COMM_REPORT") + "-began") << "\n";
    const std::unique_ptr<Pending> pending = kind == CommKind::all_reduce
                                                 ? comm.all_reduce(kWorld, part, ReduceOp::sum, "numbers")
                                                 : comm.all_gather(kWorld, part, whole, "numbers");
    const CommOutcome<void> outcome = pending->wait(Deadline::after(Seconds(kDeadline), "a step"));
    if (outcome) continue;
    std::ofstream(variable("OPTIMUS_COMM_REPORT")) << text(outcome.error()) << "\n";
    return;
  }
}

void run_body(Comm& comm, const std::string& body) {
  const auto nothing = [](int) {};
  const auto end_at_5 = [&](int step) {
    if (step == 5 && comm.rank() == 1) ::_exit(3);
  };
  if (body == "everything") {
    every_operation(comm);
    large_tensors(comm);
    messages(comm);
    random_interleaving(comm, 5);
  }
  if (body == "small") until_failure(comm, CommKind::all_reduce, 10, nothing);
  if (body == "large") until_failure(comm, CommKind::all_reduce, 4'000'000, nothing);
  if (body == "exits") until_failure(comm, CommKind::all_gather, 1000, end_at_5);
}

// The rank itself: runs only in a process that was started as a rank.
TEST(Process, IsOneRank) {
  const std::string body = variable("OPTIMUS_COMM_BODY");
  if (body.empty()) GTEST_SKIP() << "started by the other tests of this file";
  const ProcessCommOptions options{
      std::stoi(variable("OPTIMUS_COMM_RANK")),
      std::stoi(variable("OPTIMUS_COMM_SIZE")),
      {.port = std::stoi(variable("OPTIMUS_COMM_PORT")), .token = variable("OPTIMUS_COMM_BODY")},
      body == "large" ? AlgorithmThresholds{} : kTestThresholds};
  const std::unique_ptr<Comm> comm = value_or_throw(make_process_comm(options, soon()));
  run_body(*comm, body);
}

class Ranks {
 public:
  Ranks(const std::string& body, int size) : server_(std::make_unique<StoreServer>()) {
    for (int rank = 0; rank < size; ++rank) pids_.push_back(spawn(body, rank, size));
  }
  ~Ranks() {
    for (const pid_t pid : pids_)
      if (pid > 0) ::kill(pid, SIGKILL), ::waitpid(pid, nullptr, 0);
  }

  void signal(int rank, int number) { ::kill(pids_[static_cast<std::size_t>(rank)], number); }
  int port() const { return server_->port(); }
  void end_server() { server_.reset(); }

  // The exit code; -number of the signal that ended it; -1000 if it did not end in time.
  int wait(int rank, double seconds) {
    pid_t& pid = pids_[static_cast<std::size_t>(rank)];
    const Deadline deadline = soon(seconds);
    int status = 0;
    while (::waitpid(pid, &status, WNOHANG) == 0) {
      if (deadline.has_passed()) return -1000;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    pid = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  // Waits until each rank has done some steps.
  void wait_until_under_way() const {
    const Deadline deadline = soon(60);
    for (int rank = 0; rank < static_cast<int>(pids_.size()); ++rank)
      while (!std::filesystem::exists(report_path(rank).string() + "-began") && !deadline.has_passed())
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::string report(int rank) const { return content(report_path(rank)); }
  std::string output(int rank) const { return content(folder_.path() / fmt::format("output-{}", rank)); }

 private:
  Path report_path(int rank) const { return folder_.path() / fmt::format("report-{}", rank); }
  pid_t spawn(const std::string& body, int rank, int size) {
    return spawn_self(
        "Process.IsOneRank",
        {"OPTIMUS_COMM_BODY=" + body, fmt::format("OPTIMUS_COMM_RANK={}", rank),
         fmt::format("OPTIMUS_COMM_SIZE={}", size), fmt::format("OPTIMUS_COMM_PORT={}", server_->port()),
         "OPTIMUS_COMM_REPORT=" + report_path(rank).string()},
        folder_.path() / fmt::format("output-{}", rank));
  }

  TemporaryFolder folder_;
  std::unique_ptr<StoreServer> server_;
  std::vector<pid_t> pids_;
};

void expect_all_pass(const std::string& body, int size) {
  Ranks ranks(body, size);
  for (int rank = 0; rank < size; ++rank)
    EXPECT_EQ(ranks.wait(rank, 60), 0) << body << ", rank " << rank << ": " << ranks.output(rank);
}

TEST(Process, Everything) {
  for (const int size : {1, 2, 4}) expect_all_pass("everything", size);
}

void expect_others_report(Ranks& ranks, int size, int gone, double longest) {
  const auto begin_time = Clock::now();
  for (int rank = 0; rank < size; ++rank) {
    if (rank == gone) continue;
    EXPECT_EQ(ranks.wait(rank, 20), 0) << "rank " << rank << ": " << ranks.output(rank);
    EXPECT_LT(std::chrono::duration<double>(Clock::now() - begin_time).count(), longest);
    const std::string report = ranks.report(rank);
    EXPECT_NE(report.find(fmt::format("rank {} missing", gone)), std::string::npos) << report;
    EXPECT_NE(report.find("of numbers in world {0 1 2}, epoch 0: "), std::string::npos) << report;
    EXPECT_NE(report.find("(waited "), std::string::npos) << report;
  }
}

// The others notice it well before the deadline, by the closed connection.
TEST(Process, KilledPeer) {
  for (const char* body : {"small", "large"}) {
    Ranks ranks(body, 3);
    ranks.wait_until_under_way();
    ranks.signal(1, SIGKILL);
    expect_others_report(ranks, 3, 1, kDeadline + 1);
    EXPECT_EQ(ranks.wait(1, 5), -SIGKILL);
  }
}

TEST(Process, StoppedPeer) {
  for (const char* body : {"small", "large"}) {
    Ranks ranks(body, 3);
    ranks.wait_until_under_way();
    ranks.signal(2, SIGSTOP);
    expect_others_report(ranks, 3, 2, kDeadline + 2);
  }
}

TEST(Process, PeerThatExits) {
  Ranks ranks("exits", 3);
  EXPECT_EQ(ranks.wait(1, 20), 3) << ranks.output(1);
  expect_others_report(ranks, 3, 1, kDeadline + 1);
}

// The store's port can be bound again at once.
TEST(Process, PortIsFreeAfterwards) {
  Ranks ranks("small", 2);
  ranks.wait_until_under_way();
  const int port = ranks.port();
  ranks.signal(0, SIGKILL);
  EXPECT_EQ(ranks.wait(1, 20), 0) << ranks.output(1);
  ranks.end_server();
  const int handle = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  EXPECT_NE(::connect(handle, reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << "still listening";
  ::close(handle);
}

// Ranks that are connected continue without the store; a failure is then reported without its help.
TEST(Process, ContinuesWithoutStore) {
  Ranks ranks("small", 3);
  ranks.wait_until_under_way();
  ranks.end_server();
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  ranks.signal(0, SIGKILL);
  for (const int rank : {1, 2}) {
    EXPECT_EQ(ranks.wait(rank, 20), 0) << ranks.output(rank);
    EXPECT_NE(ranks.report(rank).find("missing"), std::string::npos) << ranks.report(rank);
  }
}

}  // namespace
}  // namespace optimus::test
