// Failures inside one process: a rank that does not arrive, starts a different operation, leaves, or is told
// to abandon. Every failure names the operation, the group, the missing ranks and the time waited, and is
// reported in time. Processes that die are tested in process_test.cpp.
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>

#include "comm/comm_checks.h"

namespace optimus::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin_time) {
  return std::chrono::duration<double>(Clock::now() - begin_time).count();
}

struct FailureTest : testing::TestWithParam<Backend> {};

// Waits up to this long are clearly shorter than the deadlines of 20 s.
constexpr double kPromptly = 5;

void expect_failure(const CommOutcome<void>& outcome, const std::vector<int>& missing,
                    const std::vector<std::string>& words) {
  require(!outcome, "the operation did not fail");
  const std::string shown = text(outcome.error());
  require(outcome.error().missing == missing, "unexpected missing ranks: " + shown);
  for (const std::string& word : words)
    require(shown.find(word) != std::string::npos, "'" + word + "' is not in: " + shown);
  require(shown.find('\n') == std::string::npos, "more than one line: " + shown);
}

TEST_P(FailureTest, RankDoesNotParticipate) {
  for (const CommKind kind : kCollectives)
    for (const std::int64_t count : {10, 100'000}) {
      // other operations depend on the size only through their stages
      if (count > 10 && kind != CommKind::all_reduce) continue;
      std::atomic<int> num_failed = 0;
      run_ranks(GetParam(), 3, [&](std::unique_ptr<Comm> comm) {
        must(comm->connect(2, {{kWorld}}, soon()));
        if (comm->rank() == 1) {
          while (num_failed < 2) std::this_thread::yield();
          return;
        }
        Started one = start(*comm, kWorld, kind, at::kFloat, count, 1);  // the root of a broadcast is rank 1
        const auto begin_time = Clock::now();
        const CommOutcome<void> outcome = one.pending->wait(Deadline::after(Seconds(0.3), "step 7"));
        const double waited = seconds_since(begin_time);
        ++num_failed;
        // The second rank to fail may learn of it from the first.
        expect_failure(outcome, {1},
                       {std::string(name(kind)) + " of numbers", "world {0 1 2}, epoch 2", "rank 1 missing"});
        require(waited > 0.05 && waited < kPromptly, "waited " + std::to_string(waited));
        expect_failure(one.pending->wait(soon()), {1}, {});  // the outcome does not change
        const auto again = Clock::now();
        require(!start(*comm, kWorld, kind, at::kFloat, count, 2).pending->wait(soon()),
                "an operation of a broken group succeeded");
        require(seconds_since(again) < kPromptly, "a broken group made a rank wait");
      });
    }
}

TEST_P(FailureTest, ReceiverWithoutSender) {
  run_ranks(GetParam(), 2, [&](std::unique_ptr<Comm> comm) {
    must(comm->connect(0, {{kWorld}}, soon()));
    const at::Tensor row = at::empty({4}, at::kFloat);
    if (comm->rank() == 0)
      expect_failure(
          comm->receive(1, row, 3, "activations of block 2")->wait(Deadline::after(Seconds(0.2), "step 1")),
          {1}, {"receive of activations of block 2", "the deadline for step 1 passed"});
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(400));
  });
}

TEST_P(FailureTest, RankDoesNotConnect) {
  run_ranks(GetParam(), 3, [&](std::unique_ptr<Comm> comm) {
    if (comm->rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(600));
      return;
    }
    expect_failure(comm->connect(0, {{kWorld}}, Deadline::after(Seconds(0.3), "connecting")), {2},
                   {"connect", "world {0 1 2}, epoch 0"});
  });
}

TEST_P(FailureTest, RankLeaves) {
  for (const std::int64_t count : {10, 100'000})
    run_ranks(GetParam(), 3, [&](std::unique_ptr<Comm> comm) {
      must(comm->connect(0, {{kWorld}}, soon()));
      start(*comm, kWorld, CommKind::all_reduce, at::kFloat, count, 1).finish();
      if (comm->rank() == 0) return;  // its Comm is destroyed here
      const auto begin_time = Clock::now();
      const CommOutcome<void> outcome =
          start(*comm, kWorld, CommKind::all_gather, at::kFloat, count, 2).pending->wait(soon());
      require(seconds_since(begin_time) < kPromptly, "noticed too late");
      expect_failure(outcome, {0}, {"all_gather of numbers"});
    });
}

TEST_P(FailureTest, Abandoned) {
  for (const std::int64_t count : {10, 100'000}) {
    std::atomic<bool> is_over = false;
    run_ranks(GetParam(), 2, [&](std::unique_ptr<Comm> comm) {
      must(comm->connect(0, {{kWorld}}, soon()));
      if (comm->rank() == 1) {
        while (!is_over) std::this_thread::yield();
        return;
      }
      std::thread other([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        comm->abandon("the plan changes");
      });
      const auto begin_time = Clock::now();
      const CommOutcome<void> outcome =
          start(*comm, kWorld, CommKind::all_reduce, at::kFloat, count, 1).pending->wait(soon());
      const double waited = seconds_since(begin_time);
      other.join();
      const CommOutcome<void> next =
          start(*comm, kWorld, CommKind::all_reduce, at::kFloat, count, 2).pending->wait(soon());
      is_over = true;
      require(!outcome && outcome.error().reason.find("the plan changes") != std::string::npos,
              "the reason is missing");
      require(waited < kPromptly, "ended too late");
      require(!next, "an operation succeeded after abandon()");
    });
  }
}

// The others learn of it while they connect, or before.
TEST_P(FailureTest, Declined) {
  for (const bool is_late : {false, true})
    run_ranks(GetParam(), 4, [&](std::unique_ptr<Comm> comm) {
      must(comm->connect(0, {{kWorld}}, soon()));
      const bool declines = comm->rank() == 3;
      if (declines == is_late) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      const auto begin_time = Clock::now();
      if (declines) {
        comm->decline(1, "not enough memory");
      } else {
        const std::vector<Group> groups = {kWorld, {Role::tensor, {0, 1}}, {Role::tensor, {2, 3}}};
        const CommOutcome<void> outcome = comm->prepare(1, groups, soon());
        require(seconds_since(begin_time) < kPromptly, "noticed too late");
        expect_failure(outcome, {3}, {"rank 3 declined to connect: not enough memory"});
      }
      // Operations continue in the present epoch, and work in the next one.
      must(start(*comm, kWorld, CommKind::all_reduce, at::kFloat, 10, 1).pending->wait(soon()));
      must(comm->prepare(2, {{kWorld}}, soon()));
      must(comm->connect(2, {{kWorld}}, soon()));
      must(start(*comm, kWorld, CommKind::all_reduce, at::kFloat, 10, 2).pending->wait(soon()));
    });
}

// One rank starts a different operation than the others: no rank gets wrong numbers, all fail.
TEST_P(FailureTest, WrongOrder) {
  run_ranks(GetParam(), 3, [&](std::unique_ptr<Comm> comm) {
    must(comm->connect(0, {{kWorld}}, soon()));
    const bool is_odd = comm->rank() == 2;
    Started one = start(*comm, kWorld, is_odd ? CommKind::all_gather : CommKind::all_reduce, at::kFloat,
                        is_odd ? 20 : 10, 3);
    const CommOutcome<void> outcome = one.pending->wait(Deadline::after(Seconds(0.4), "step 1"));
    require(!outcome, "mismatched operations were treated as one");
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, FailureTest,
                         testing::Values(Backend::threads, Backend::gloo, Backend::trees),
                         [](const auto& one) { return text(one.param); });

TEST(ThreadFailure, WrongOrderIsExplained) {
  run_ranks(Backend::threads, 2, [&](std::unique_ptr<Comm> comm) {
    must(comm->connect(0, {{kWorld}}, soon()));
    const CommOutcome<void> outcome =
        start(*comm, kWorld, CommKind::all_reduce, at::kFloat, 10 + comm->rank(), 3).pending->wait(soon());
    expect_failure(outcome, {}, {"started all_reduce of numbers (", "), but rank", "(44 B)", "(40 B)"});
  });
}

}  // namespace
}  // namespace optimus::test
