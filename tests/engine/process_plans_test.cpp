// 24 random plans run by real processes over Gloo, each compared with one device, like parallel_test.cpp with
// threads. This program starts itself four times. Each process trains its part of every plan and, alone, the
// whole model, and compares its tensors. The seed differs on each run and is printed; OPTIMUS_SEED repeats a
// run. fp64, three steps, tolerance 1e-9 as there.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <random>

#include "base/random.h"
#include "base/temporary_folder.h"
#include "comm/c10d_comm.h"
#include "comm/spawn_self.h"
#include "engine/engine.h"
#include "model/open.h"
#include "plan/describe.h"
#include "plan/validate.h"

namespace optimus {
namespace {

constexpr int kRanks = 4, kPlans = 24, kSteps = 3;
constexpr std::int64_t kLength = 10;
constexpr double kTolerance = 1e-9;

struct Case {
  ModelSpec model;
  Plan plan;
};

// The same in every process with the same seed.
Case case_of(std::uint64_t seed, int number) {
  const RandomKey key = RandomKey(seed).derive("process plans").derive(static_cast<std::uint64_t>(number));
  std::uint64_t next = 0;
  const auto below = [&](int bound) {
    return static_cast<int>(random_below(key, next++, static_cast<std::uint64_t>(bound)));
  };
  const bool is_llama = below(2) == 1;
  ModelOverrides size{
      .layers = 4, .hidden = 16, .heads = 4, .head_dim = 4, .ffn = 22, .vocab = 53, .max_positions = 16};
  if (is_llama) size.kv_heads = 2;
  Case result{with_overrides(open_model(is_llama ? "llama3-8b" : "gpt2"), size), {}};
  result.model.embedding_dropout = result.model.hidden_dropout = result.model.attention_dropout = 0.1;
  struct Width {
    int pp, tp, cp, dp;
  };
  constexpr Width kWidths[] = {{1, 1, 1, 2}, {1, 1, 1, 3}, {1, 1, 1, 4}, {1, 2, 1, 1}, {1, 2, 1, 2},
                               {1, 3, 1, 1}, {1, 4, 1, 1}, {2, 1, 1, 1}, {3, 1, 1, 1}, {4, 1, 1, 1},
                               {2, 2, 1, 1}, {2, 1, 1, 2}, {1, 1, 2, 1}, {1, 1, 3, 1}, {2, 1, 2, 1}};
  const auto& [pp, tp, cp, dp] = kWidths[below(static_cast<int>(std::size(kWidths)))];
  UniformPlan shape{
      .pp = pp, .dp = dp, .microbatch = 1 + below(2), .batch = 2 + below(6), .sequence_length = kLength};
  shape.precision = Precision::fp64;
  if (pp > 1) shape.schedule = static_cast<Schedule>(below(4));
  if (shape.schedule == Schedule::interleaved) shape.chunks = pp > 2 ? 1 : 2;
  if (shape.chunks == 1 && shape.schedule == Schedule::interleaved) shape.schedule = Schedule::one_f_one_b;
  LayerStrategy& strategy = shape.strategy;
  strategy.cp = cp;
  strategy.tp = tp, strategy.sequence_parallel = tp > 1 && below(2) == 1, strategy.zero = below(4);
  if (strategy.zero > 0 && dp == 4 && below(2) == 1) strategy.shard_group = 2;
  strategy.recompute = static_cast<RecomputeMode>(below(3));
  result.plan = uniform_plan(result.model, shape);
  result.plan.copy_distance = below(2);
  // state in a single shard cannot have a copy
  if (find_problem(result.plan, result.model)) result.plan.copy_distance = 0;
  return result;
}

std::vector<Sample> make_samples(std::int64_t first, std::int64_t count, const ModelSpec& model) {
  std::vector<Sample> result;
  const auto vocab = static_cast<std::uint64_t>(model.vocab);
  for (std::int64_t s = first; s < first + count; ++s) {
    Sample& sample = result.emplace_back();
    const RandomKey key = RandomKey(3).derive(static_cast<std::uint64_t>(s));
    for (std::int64_t i = 0; i < kLength - s % 3; ++i) {
      sample.inputs.push_back(static_cast<TokenId>(random_below(key, static_cast<std::uint64_t>(i), vocab)));
      sample.targets.push_back(i % 5 == 4 ? kNoTarget
                                          : (sample.inputs.back() * 7 + 1) % static_cast<TokenId>(vocab));
      sample.positions.push_back(static_cast<std::int32_t>(i));
      sample.num_targets += sample.targets.back() != kNoTarget;
    }
  }
  return result;
}

// Returns losses and norms of the steps.
std::vector<double> train(const Case& one, int rank, Comm* comm, int epoch, Parameters& parameters) {
  parameters.initialize(5);
  EngineOptions options{.seed = 9};
  options.rank = rank, options.comm = comm, options.timeout = Seconds(60);
  Engine engine(one.plan, one.model, parameters, options);
  if (comm != nullptr)
    throw_if_failed(comm->connect(epoch, engine.groups(), Deadline::after(Seconds(60), "connecting")));
  std::vector<double> result;
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t first = step * one.plan.batch;
    const Batch batch =
        make_batch(make_samples(first, one.plan.batch, one.model), one.plan, step, first, rank);
    const StepReport report = value_or_throw(engine.train_step(batch, {.learning_rate = 1e-2}));
    result.push_back(report.loss), result.push_back(report.grad_norm);
  }
  return result;
}

// Compares this rank's tensors with the same boxes of one device, by relative norm.
void compare(const Case& one, const Parameters& mine, const Parameters& whole) {
  for (const LogicalTensor& tensor : mine.tensors()) {
    // Without RoPE their gradient is only rounding noise, which Adam amplifies.
    if (one.model.positions != PositionKind::rope && tensor.name.ends_with("attention.k.bias")) continue;
    if (mine.find(tensor.name) == nullptr) continue;  // belongs to another stage
    at::Tensor expected = whole.master(tensor.name);
    const double size = expected.norm().item<double>();
    const Box box = mine.box(tensor.name, &BlockState::masters);
    for (int d = 0; d < box.num_dims; ++d) expected = expected.narrow(d, box[d].begin, box[d].size());
    EXPECT_LE((mine.master(tensor.name) - expected).norm().item<double>(), kTolerance * size) << tensor.name;
  }
}

// Runs only in the processes that the other test starts.
TEST(ProcessPlans, ChildRank) {
  if (test::variable("OPTIMUS_PLANS_RANK").empty()) GTEST_SKIP() << "started by the other test of this file";
  const int rank = std::stoi(test::variable("OPTIMUS_PLANS_RANK"));
  const ProcessCommOptions options{
      rank, kRanks, {.port = std::stoi(test::variable("OPTIMUS_PLANS_PORT")), .token = "plans"}};
  const std::unique_ptr<Comm> comm =
      value_or_throw(make_process_comm(options, Deadline::after(Seconds(60), "the store")));
  for (int number = 0; number < kPlans; ++number) {
    const Case one = case_of(std::stoull(test::variable("OPTIMUS_PLANS_SEED")), number);
    const std::string what = fmt::format("plan {}: {}, {}", number, one.model.name, short_text(one.plan));
    SCOPED_TRACE(what);
    ASSERT_EQ(find_problem(one.plan, one.model), std::nullopt);
    const int size = num_devices(one.plan);
    if (rank >= size) {  // idle, but messages need all ranks to be connected
      throw_if_failed(comm->connect(number, {}, Deadline::after(Seconds(60), "connecting")));
      continue;
    }
    Parameters mine(one.plan, one.model, rank, at::kCPU);
    const std::vector<double> seen = train(one, rank, comm.get(), number, mine);
    Case alone = one;
    alone.plan = uniform_plan(one.model, {.microbatch = static_cast<int>(one.plan.batch),
                                          .batch = one.plan.batch,
                                          .sequence_length = kLength,
                                          .precision = Precision::fp64});
    Parameters whole(alone.plan, one.model, 0, at::kCPU);
    const std::vector<double> expected = train(alone, 0, nullptr, 0, whole);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(seen[i], expected[i], kTolerance * expected[i]) << "step " << i / 2;
    compare(one, mine, whole);
    comm->drop(number);
    if (HasFailure()) return;
  }
}

pid_t spawn_rank(int rank, int port, std::uint64_t seed, const Path& output) {
  return test::spawn_self(
      "ProcessPlans.IsOneRank",
      {fmt::format("OPTIMUS_PLANS_RANK={}", rank), fmt::format("OPTIMUS_PLANS_PORT={}", port),
       fmt::format("OPTIMUS_PLANS_SEED={}", seed)},
      output);
}

TEST(ProcessPlans, EqualOneDevice) {
  const std::string given = test::variable("OPTIMUS_SEED");
  const std::uint64_t seed = given.empty() ? std::random_device()() : std::stoull(given);
  std::printf("OPTIMUS_SEED=%llu\n", static_cast<unsigned long long>(seed));
  const TemporaryFolder folder;
  const StoreServer server;
  const auto output = [&](int rank) { return folder.path() / fmt::format("rank-{}", rank); };
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank)
    pids.push_back(spawn_rank(rank, server.port(), seed, output(rank)));
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    ASSERT_EQ(::waitpid(pids[static_cast<std::size_t>(rank)], &status, 0),
              pids[static_cast<std::size_t>(rank)]);
    EXPECT_EQ(status, 0) << "seed " << seed << ", rank " << rank << ": " << test::content(output(rank));
  }
}

}  // namespace
}  // namespace optimus
