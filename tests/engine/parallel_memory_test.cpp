// The memory used by the devices of a plan equals the prediction of their programs. It is tracked while all
// ranks train as threads, so it is the sum over ranks.
#include <gtest/gtest.h>

#include <thread>

#include "comm/thread_comm.h"
#include "engine/engine.h"
#include "engine/test_device.h"
#include "model/open.h"
#include "plan/describe.h"
#include "switching/memory.h"

namespace optimus {
namespace {

constexpr std::int64_t kLength = 64;

std::vector<Sample> some_samples(std::int64_t count) {
  std::vector<Sample> data;
  for (std::int64_t s = 0; s < count; ++s) {
    Sample& sample = data.emplace_back();
    for (std::int32_t i = 0; i < kLength; ++i)
      sample.inputs.push_back(i), sample.targets.push_back(i + 1), sample.positions.push_back(i);
    sample.num_targets = kLength;
  }
  return data;
}

void train_rank(const ModelSpec& model, const Plan& plan, Comm& comm) {
  Parameters parameters(plan, model, comm.rank(), test_device());
  EngineOptions options{.device = test_device()};
  options.rank = comm.rank(), options.comm = &comm, options.timeout = Seconds(60);
  Engine engine(plan, model, parameters, options);
  throw_if_failed(comm.connect(0, engine.groups(), Deadline::after(Seconds(60), "connecting")));
  const Batch batch = make_batch(some_samples(plan.batch), plan, 0, 0, comm.rank());
  for (int step = 0; step < 2; ++step) value_or_throw(engine.train_step(batch, {.learning_rate = 1e-3}));
}

// All ranks reach their peaks at about the same time, so the sum of their predictions is the peak of the
// process.
TEST(ParallelMemory, IsAsPredicted) {
  if (test_device().is_cuda())
    GTEST_SKIP() << "ranks as threads share the allocator of one GPU, whose peaks cannot be told apart";
  struct Case {
    int tp, dp, zero;
    bool is_sequence_parallel = false;
    int group = 0;
    RecomputeMode recompute = RecomputeMode::none;
    int pp = 1, cp = 1;
    Schedule schedule = Schedule::one_f_one_b;
    int copy_distance = 0;
  };
  const auto none = RecomputeMode::none;
  const std::vector<Case> cases = {{2, 1, 0},
                                   {4, 1, 0},
                                   {2, 1, 0, true},
                                   {4, 1, 0, true},
                                   {1, 2, 0},
                                   {1, 2, 1},
                                   {1, 2, 2},
                                   {1, 2, 3},
                                   {1, 4, 1},
                                   {1, 4, 2},
                                   {1, 4, 3},
                                   {1, 4, 1, false, 2},
                                   {1, 4, 3, false, 2},
                                   {2, 2, 1},
                                   {2, 2, 2, true},
                                   {2, 2, 3},
                                   {2, 2, 3, true},
                                   {1, 2, 1, false, 0, RecomputeMode::full},
                                   {2, 1, 0, true, 0, RecomputeMode::selective},
                                   {1, 2, 3, false, 0, RecomputeMode::full},
                                   {1, 1, 0, false, 0, none, 2, 1, Schedule::gpipe},
                                   {1, 1, 0, false, 0, none, 4, 1, Schedule::one_f_one_b},
                                   {1, 1, 0, false, 0, none, 2, 1, Schedule::interleaved},
                                   {1, 1, 0, false, 0, none, 4, 1, Schedule::zero_bubble},
                                   {2, 1, 0, false, 0, none, 2, 1, Schedule::one_f_one_b},
                                   {2, 1, 0, true, 0, none, 2, 1, Schedule::one_f_one_b},
                                   {1, 2, 1, false, 0, RecomputeMode::full, 2, 1, Schedule::one_f_one_b},
                                   {1, 1, 0, false, 0, none, 1, 2},
                                   {1, 1, 0, false, 0, none, 1, 4},
                                   {2, 1, 0, true, 0, RecomputeMode::selective, 1, 2},
                                   {1, 2, 1, false, 0, none, 1, 1, Schedule::one_f_one_b, 1},
                                   {1, 4, 2, false, 0, none, 1, 1, Schedule::one_f_one_b, 1},
                                   {1, 4, 3, false, 0, none, 1, 1, Schedule::one_f_one_b, 2},
                                   {2, 2, 1, false, 0, none, 1, 1, Schedule::one_f_one_b, 1},
                                   {1, 2, 3, false, 0, RecomputeMode::full, 2, 1, Schedule::one_f_one_b, 1}};
  for (const Case& one : cases) {
    const char* const preset = one.tp == 1 ? "gpt2" : "llama3-8b";
    ModelOverrides shape{.layers = 4,
                         .hidden = 128,
                         .heads = 8,
                         .head_dim = 16,
                         .ffn = 512,
                         .vocab = 1024,
                         .max_positions = 128};
    if (one.tp > 1) shape.kv_heads = 4;
    ModelSpec model = with_overrides(open_model(preset), shape);
    model.embedding_dropout = model.hidden_dropout = model.attention_dropout = 0;
    UniformPlan uniform{.dp = one.dp, .microbatch = 2, .batch = 4 * one.dp, .sequence_length = kLength};
    uniform.precision = Precision::fp32;
    uniform.pp = one.pp, uniform.strategy.cp = one.cp, uniform.schedule = one.schedule;
    if (one.pp > 1) uniform.microbatch = 1;
    if (one.schedule == Schedule::interleaved) uniform.chunks = 2;
    uniform.strategy.tp = one.tp, uniform.strategy.zero = one.zero, uniform.strategy.shard_group = one.group;
    uniform.strategy.sequence_parallel = one.is_sequence_parallel, uniform.strategy.recompute = one.recompute;
    Plan plan = uniform_plan(model, uniform);
    plan.copy_distance = one.copy_distance;
    double predicted = 0;
    for (int rank = 0; rank < num_devices(plan); ++rank)
      predicted += static_cast<double>(predicted_memory(plan, model, rank, test_device()).value);
    MemoryWatch memory;
    {
      ThreadWorld world(num_devices(plan));
      std::vector<std::thread> threads;
      for (int rank = 0; rank < num_devices(plan); ++rank)
        threads.emplace_back(
            [&, comm = std::shared_ptr<Comm>(world.comm(rank))] { train_rank(model, plan, *comm); });
      for (std::thread& thread : threads) thread.join();
    }
    const double ratio = static_cast<double>(memory.peak()) / predicted;
    std::printf("%-28s %8.2f MiB, %5.1f %% of the prediction\n", short_text(plan).c_str(),
                static_cast<double>(memory.peak()) / 0x1p20, 100 * ratio);
    EXPECT_NEAR(ratio, 1, 0.1) << short_text(plan);  // relative to the specified accuracy
  }
}

// The formula of the ZeRO paper for bf16 weights, fp32 accumulators, masters and moments: 18 bytes per
// parameter become 6 + 12 / N, 2 + 16 / N, 18 / N. Shards are padded to whole rows: at most N - 1 additional
// rows per tensor.
TEST(ParallelMemory, ShardedStateMatchesZeroFormula) {
  const ModelSpec model = with_overrides(
      open_model("gpt2"), {.layers = 4, .hidden = 256, .heads = 8, .head_dim = 32, .vocab = 4096});
  const auto parameters = static_cast<double>(num_parameters(model));
  for (const int n : {2, 4, 8})
    for (const int zero : {0, 1, 2, 3}) {
      UniformPlan shape{.dp = n, .batch = n, .sequence_length = 8};
      shape.strategy.zero = zero;
      const MemoryUse use = memory_use(compile(uniform_plan(model, shape), model, 0));
      const double bytes =
          static_cast<double>((use.weights + use.gradients + use.optimizer).value) / parameters;
      const double formula = zero == 0 ? 18 : zero == 1 ? 6 + 12.0 / n : zero == 2 ? 2 + 16.0 / n : 18.0 / n;
      EXPECT_GE(bytes, formula * 0.999);
      EXPECT_LE(bytes, formula * 1.01) << "zero " << zero << " of " << n;
    }
}

}  // namespace
}  // namespace optimus
