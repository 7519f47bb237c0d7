// Worker processes: this program starts itself with one test that is a worker and adds numbers with the
// others until told otherwise. Some workers end, are killed or stopped; one line reports it, and no process
// is left.
#include "launch/workers.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include <ATen/ops/empty.h>

#include "base/event.h"
#include "base/temporary_folder.h"
#include "comm/c10d_link.h"
#include "run/worker.h"
#include "switching/step_agreement.h"

namespace optimus::test {
namespace {

volatile std::sig_atomic_t is_asked_to_end = 0;

// Steps until an event; each rank creates a file after its first steps.
TrainResult steps(Comm& comm, const WorkerSpec& place, const std::string& how) {
  const Group world{Role::world, {}};
  throw_if_failed(comm.connect(0, {&world, 1}, Deadline::after(Seconds(30), "connecting")));
  StepAgreement agreement(comm, Seconds(1.5));
  const at::Tensor numbers = at::empty({1000}, at::kFloat);
  for (int step = 0; how != "done" || step < 20; ++step) {
    if (step == 10 && comm.rank() == 1 && how == "user-error") throw UserError("the data of rank 1 is gone");
    if (step == 10 && comm.rank() == 1 && how == "exit") ::_exit(7);
    if (step == 10 && comm.rank() == 1 && how == "abort") std::abort();
    throw_if_failed(comm.all_reduce(world, numbers, ReduceOp::sum, "gradients")
                        ->wait(Deadline::after(Seconds(1.5), "a step")));
    if (step == 5) std::ofstream(place.run / fmt::format("began-{}", comm.rank())) << "\n";
    if (agreement.take().ends) return {.end = TrainEnd::stopped};
    agreement.submit({.ends = is_asked_to_end != 0});
  }
  agreement.take();
  return {.steps = 20};
}

TEST(Worker, IsOne) {
  const std::optional<WorkerSpec> place = worker_spec(process_environment());
  if (!place) GTEST_SKIP() << "started by the other tests of this file";
  std::signal(SIGINT, [](int) { is_asked_to_end = 1; });
  std::ifstream file(place->run / "how");
  std::string how;
  file >> how;
  std::_Exit(run_as_worker(*place, [&](Comm& comm, StatusLine&) { return steps(comm, *place, how); }));
}

struct WorkersTest : testing::Test {
  std::unique_ptr<Workers> start(const std::string& how, int size = 3) {
    folder.write("run/how", how);
    return std::make_unique<Workers>(
        WorkersOptions{.program = "/proc/self/exe",
                       .arguments = {"test", "--gtest_filter=Worker.IsOne"},
                       .run = run,
                       .devices = std::vector<std::string>(static_cast<std::size_t>(size), "cpu"),
                       .threads = 1,
                       .port = store.port(),
                       .token = how,
                       .grace = Seconds(4)});
  }
  void wait_until_under_way(int size = 3) const {
    const Deadline deadline = Deadline::after(Seconds(30), "the workers");
    for (int rank = 0; rank < size; ++rank)
      while (!std::filesystem::exists(run / fmt::format("began-{}", rank)) && !deadline.has_passed())
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  template <typename Kind = RuntimeFailure>
  std::string failure_of(Workers& workers) {
    try {
      workers.wait(StopToken());
    } catch (const Kind& error) {
      return error.what();
    }
    return "nothing failed";
  }
  void expect_no_process_left(const Workers& workers, int size = 3) const {
    for (int rank = 0; rank < size; ++rank) EXPECT_NE(::kill(workers.pid(rank), 0), 0) << "rank " << rank;
  }

  TemporaryFolder folder;
  const Path run = folder / "run";
  const StoreServer store;
};

void expect_words(const std::string& line, const std::vector<std::string>& words) {
  for (const std::string& word : words) EXPECT_NE(line.find(word), std::string::npos) << line;
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
}

TEST_F(WorkersTest, CompleteTheirWork) {
  const auto workers = start("done");
  const Json listed = read_json(run / "workers.json");
  ASSERT_EQ(listed["workers"].size(), 3U);
  EXPECT_EQ(listed["workers"][2]["rank"], 2);
  EXPECT_EQ(listed["workers"][2]["pid"], workers->pid(2));
  EXPECT_EQ(listed["workers"][2]["device"], "cpu");
  EXPECT_EQ(listed["workers"][2]["log"], "logs/rank-2.log");
  EXPECT_EQ(workers->wait(StopToken()).steps, 20);
  expect_no_process_left(*workers);
  EXPECT_TRUE(read_json(run / "workers.json")["workers"].empty());
}

TEST_F(WorkersTest, NamesKilledWorker) {
  const auto workers = start("forever");
  wait_until_under_way();
  ::kill(workers->pid(2), SIGKILL);
  expect_words(failure_of(*workers), {"rank 2 (process ", "was killed by signal 9", "rank-2.log",
                                      "; rank 0 reported: ", "in world {0 1 2}, epoch 0", "rank 2 missing"});
  expect_no_process_left(*workers);
}

TEST_F(WorkersTest, NamesStoppedWorker) {
  const auto workers = start("forever");
  wait_until_under_way();
  ::kill(workers->pid(1), SIGSTOP);
  expect_words(failure_of(*workers),
               {"rank 1 (process ", "does not respond", "; rank 0 reported: ", "rank 1 missing"});
  expect_no_process_left(*workers);
}

TEST_F(WorkersTest, ErrorOfOneWorkerEndsTheRun) {
  const auto workers = start("user-error");
  expect_words(failure_of<UserError>(*workers), {"rank 1 (process ", "the data of rank 1 is gone"});
  expect_no_process_left(*workers);
}

TEST_F(WorkersTest, NamesWorkerThatExited) {
  for (const auto& [how, words] :
       {std::pair("exit", "exited with code 7"), std::pair("abort", "was killed by signal 6")}) {
    const auto workers = start(how);
    expect_words(failure_of(*workers), {"rank 1 (process ", words});
    expect_no_process_left(*workers);
  }
}

TEST_F(WorkersTest, AllEndOnRequest) {
  const auto workers = start("forever");
  wait_until_under_way();
  const StopToken requested([] { return StopRequest::stop; });
  EXPECT_EQ(workers->wait(requested).end, TrainEnd::stopped);
  expect_no_process_left(*workers);
}

TEST_F(WorkersTest, EndWithParentProcess) {
  auto workers = start("forever");
  wait_until_under_way();
  const std::vector<pid_t> pids = {workers->pid(0), workers->pid(1), workers->pid(2)};
  workers.reset();
  for (const pid_t pid : pids) EXPECT_NE(::kill(pid, 0), 0);
}

TEST_F(WorkersTest, MissingProgram) {
  try {
    Workers workers({.program = folder / "nothing",
                     .arguments = {"x"},
                     .run = run,
                     .devices = {"cpu"},
                     .port = store.port(),
                     .token = "t"});
    FAIL() << "it was started";
  } catch (const RuntimeFailure& error) {
    expect_words(error.what(), {"cannot start worker 0", "No such file"});
  }
}

TEST(WorkerProtocol, OptionsSurviveRoundTrip) {
  struct Options {
    std::string name;
    std::vector<std::string> list;
    std::optional<std::int64_t> count;
    double rate = 0.1;
    bool is_on = false;
    Path path;
    Seconds time{5};
  } from{"a b", {"0.5", "x y"}, 12, 1.0 / 3, true, "/some/where", Seconds(0.25)}, to;
  const auto declare_all = [](OptionTable& table, Options& options) {
    table.add("name", options.name, "X", "");
    table.add("list", options.list, "X", "");
    table.add("count", options.count, "X", "");
    table.add("rate", options.rate, "X", "");
    table.add("is-on", options.is_on, "");
    table.add("path", options.path, "X", "");
    table.add("time", options.time, "X", "");
  };
  OptionTable first, second;
  declare_all(first, from), declare_all(second, to);
  first.find("rate")->origin = Origin::flag, first.find("count")->origin = Origin::planner;
  restore_options(second, parse_json(serialize_options(first).dump(), "x"), "x");
  EXPECT_EQ(serialize_options(second), serialize_options(first));
  EXPECT_EQ(to.rate, from.rate);
  EXPECT_EQ(to.list, from.list);
  EXPECT_EQ(second.find("rate")->origin, Origin::flag);
}

TEST(WorkerProtocol, ReportsAndSpecsSurviveRoundTrip) {
  const WorkerReport report{WorkerReport::End::lost, "line \"one\"", {2, 3}, {{"loss", 1.5}}};
  const WorkerReport read = parse_worker_report(text(report));
  EXPECT_EQ(text(read), text(report));
  EXPECT_FALSE(read.is_user_error);
  const WorkerReport mistake{WorkerReport::End::failed, "a wrong token", {}, {}, true};
  EXPECT_TRUE(parse_worker_report(text(mistake)).is_user_error);
  EXPECT_THROW(parse_worker_report("{\"end\": \"never\", \"why\": \"\", \"missing\": []}"), UserError);
  EXPECT_THROW(parse_worker_report("nonsense"), UserError);
  WorkerSpec place{1, 3, "127.0.0.1", 4000, false, "token", "/run", "cuda:1", 2, 77, 3, -1};
  const auto again = worker_spec([&](const std::string&) { return std::optional(text(place)); });
  EXPECT_EQ(text(*again), text(place));
  place.rank = 3;
  EXPECT_THROW(worker_spec([&](const std::string&) { return std::optional(text(place)); }), UserError);
  EXPECT_FALSE(worker_spec([](const std::string&) { return std::optional<std::string>(); }));
}

}  // namespace
}  // namespace optimus::test
