// Every operation over threads and over Gloo, with the same function as each rank.
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "comm/comm_checks.h"

namespace optimus::test {
namespace {

bool is_long() {
  const char* const word = std::getenv("OPTIMUS_LONG");
  return word != nullptr && std::string(word) == "1";
}

struct CommTest : testing::TestWithParam<std::tuple<Backend, int>> {
  Backend backend() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

std::string case_text(const testing::TestParamInfo<CommTest::ParamType>& info) {
  return text(std::get<0>(info.param)) + "_" + std::to_string(std::get<1>(info.param));
}

TEST_P(CommTest, EveryOperation) {
  run_ranks(backend(), size(), [](std::unique_ptr<Comm> comm) { every_operation(*comm); });
}

TEST_P(CommTest, LargeTensors) {
  if (size() > 4 && !is_long()) GTEST_SKIP() << "worlds of up to 4 unless OPTIMUS_LONG=1";
  run_ranks(backend(), size(), [](std::unique_ptr<Comm> comm) { large_tensors(*comm); });
}

TEST_P(CommTest, Messages) {
  run_ranks(backend(), size(), [](std::unique_ptr<Comm> comm) { messages(*comm); });
}

TEST_P(CommTest, RandomInterleavings) {
  const unsigned cases = is_long() ? 40 : backend() == Backend::threads ? 5 : 1;
  for (unsigned seed = 0; seed < cases; ++seed)
    run_ranks(backend(), size(), [&](std::unique_ptr<Comm> comm) {
      random_interleaving(*comm, 100 * seed + static_cast<unsigned>(size()));
    });
}

INSTANTIATE_TEST_SUITE_P(Threads, CommTest,
                         testing::Combine(testing::Values(Backend::threads), testing::Range(1, 10)),
                         case_text);
INSTANTIATE_TEST_SUITE_P(Gloo, CommTest,
                         testing::Combine(testing::Values(Backend::gloo),
                                          testing::Values(1, 2, 3, 4, 5, 7, 9)),
                         case_text);

INSTANTIATE_TEST_SUITE_P(Trees, CommTest,
                         testing::Combine(testing::Values(Backend::trees), testing::Values(2, 3, 5, 6, 8)),
                         case_text);

struct CommTestOfBackend : testing::TestWithParam<Backend> {};

// A shard of a buffer that is gathered into the same buffer, and a sum that is left in place.
TEST_P(CommTestOfBackend, InPlace) {
  run_ranks(GetParam(), 3, [](std::unique_ptr<Comm> comm) {
    must(comm->connect(0, {{kWorld}}, soon()));
    const std::vector<int> all_ranks = {0, 1, 2};
    at::Tensor whole = row_of(at::kFloat, 7, comm->rank(), 0, 300);
    const at::Tensor own = whole.narrow(0, 100 * comm->rank(), 100);
    must(comm->reduce_scatter(kWorld, whole, own, "gradients")->wait(soon()));
    must(comm->all_gather(kWorld, own, whole, "gradients")->wait(soon()));
    require(same_bits(whole, sum_of(at::kFloat, 7, all_ranks, 0, 300, ReduceOp::sum)), "unexpected sums");
  });
}

// The last rank to arrive measures only the transfer; the time of the others includes waiting for it.
TEST(Gloo, ReportsTransferTime) {
  constexpr double kLate =
      0.2;  // seconds; a rank that is on time waits nearly as long, even on a busy machine
  run_ranks(Backend::gloo, 2, [&](std::unique_ptr<Comm> comm) {
    must(comm->connect(0, {{kWorld}}, soon()));
    const at::Tensor sums = at::zeros({1000}, at::kDouble), message = at::zeros({1000}, at::kDouble);
    must(comm->all_reduce(kWorld, sums, ReduceOp::sum, "a barrier")->wait(soon()));
    if (comm->rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(kLate));
    const auto begin_time = Deadline::Clock::now();
    const std::unique_ptr<Pending> sum = comm->all_reduce(kWorld, sums, ReduceOp::sum, "numbers");
    must(sum->wait(soon()));
    const double here = std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
    require(sum->duration().has_value() && sum->duration()->value > 0 && sum->duration()->value <= here,
            "the time of a sum");
    if (comm->rank() == 0)
      require(sum->duration()->value > kLate / 2, "the time must include waiting for rank 1");
    const std::unique_ptr<Pending> sent =
        comm->rank() == 0 ? comm->send(1, message, 0, "a row") : comm->receive(0, message, 0, "a row");
    must(sent->wait(soon()));
    require(sent->duration().has_value(), "the time of a message");
    require(!comm->uses_nccl(), "CPU ranks must not use NCCL");
  });
}

// Groups of one epoch are independent of those of the next, and both work until one is dropped.
TEST_P(CommTestOfBackend, EpochsAreIndependent) {
  run_ranks(GetParam(), 3, [](std::unique_ptr<Comm> comm) {
    const Group pair{Role::tensor, {0, 2}};
    must(comm->connect(0, {{kWorld, pair}}, soon()));
    start(*comm, kWorld, CommKind::all_reduce, at::kFloat, 10, 1).finish();
    must(comm->connect(1, {{kWorld, pair}}, soon()));
    comm->drop(0);
    start(*comm, kWorld, CommKind::all_reduce, at::kFloat, 10, 2).finish();
    if (comm->rank() != 1) start(*comm, pair, CommKind::all_gather, at::kFloat, 10, 3).finish();
  });
}

// Polling is_done() alone completes an operation.
TEST_P(CommTestOfBackend, PollingIsEnough) {
  run_ranks(GetParam(), 3, [](std::unique_ptr<Comm> comm) {
    must(comm->connect(0, {{kWorld}}, soon()));
    for (const std::int64_t count : {10, 400'000}) {
      Started one = start(*comm, kWorld, CommKind::all_reduce, at::kFloat, count, 1);
      const Deadline deadline = soon();
      while (!one.pending->is_done()) {
        require(!deadline.has_passed(), "is_done() never became true");
        std::this_thread::yield();
      }
      one.finish();
    }
  });
}

// A message that is sent late, but was polled first, delays no other operation: neither messages nor
// collectives.
TEST_P(CommTestOfBackend, PollingLateMessageDelaysNothing) {
  run_ranks(GetParam(), 2, [](std::unique_ptr<Comm> comm) {
    must(comm->connect(0, {{kWorld}}, soon()));
    const at::Tensor late = row_of(at::kFloat, 7, 1, 0, 100), early = row_of(at::kFloat, 8, 0, 0, 100);
    const auto sum = [&] { return start(*comm, kWorld, CommKind::all_reduce, at::kFloat, 400'000, 9); };
    const auto exchanged = [&](Pending& message) { must(message.wait(soon())); };
    if (comm->rank() == 0) {
      at::Tensor got = at::zeros({100}, at::kFloat);
      const auto receive = comm->receive(1, got, 1, "late");
      require(!receive->is_done(), "a message was received before it was sent");
      const auto send = comm->send(1, early, 0, "early");
      (void)send->is_done();
      exchanged(*send);
      sum().finish();
      exchanged(*receive);
      require(same_bits(got, late), "the late message");
    } else {
      at::Tensor got = at::zeros({100}, at::kFloat);
      exchanged(*comm->receive(0, got, 0, "early"));
      sum().finish();
      exchanged(*comm->send(0, late, 1, "late"));
      require(same_bits(got, early), "the early message");
    }
  });
}

// The first operation is never waited for; this rank's part of it is done all the same.
TEST_P(CommTestOfBackend, AbandonedOperationsDoNotDelayOthers) {
  run_ranks(GetParam(), 3, [](std::unique_ptr<Comm> comm) {
    must(comm->connect(0, {{kWorld}}, soon()));
    for (const std::int64_t count : {10, 400'000}) {
      Started forgotten = start(*comm, kWorld, CommKind::all_reduce, at::kFloat, count, 1);
      if (comm->rank() == 1)
        forgotten = {};
      else
        forgotten.finish();
    }
    start(*comm, kWorld, CommKind::all_gather, at::kFloat, 10, 2).finish();
  });
}

TEST_P(CommTestOfBackend, FlightLogRecordsOperations) {
  run_ranks(GetParam(), 2, [](std::unique_ptr<Comm> comm) {
    must(comm->connect(4, {{kWorld}}, soon()));
    start(*comm, kWorld, CommKind::all_gather, at::kFloat, 10, 2).finish();
    const std::vector<FlightEntry> entries = comm->flight_log().entries();
    const FlightEntry& last = entries.back();
    require(last.operation == "all_gather of numbers" && last.group == "world {0 1}, epoch 4" &&
                last.bytes == 80 && last.state == FlightState::done,
            comm->flight_log().text());
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, CommTestOfBackend,
                         testing::Values(Backend::threads, Backend::gloo, Backend::trees),
                         [](const auto& one) { return text(one.param); });

}  // namespace
}  // namespace optimus::test
