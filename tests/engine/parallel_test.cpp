// A plan with several devices, each a thread, trains like one device. In fp64, so that only the order of sums
// differs: after a few steps of AdamW every weight agrees within 1e-9 of its tensor's norm.
//
// Random plans over tensor, pipeline, context and data parallelism, ZeRO, hybrid sharding, sequence
// parallelism, schedules, accumulation, recomputation and batches that do not divide evenly; GPT-2, Llama
// with grouped heads, Qwen 3 with norms of heads, BERT. Dropout is enabled. Plans whose layers or pipelines
// differ: any_plan_test.cpp.
#include "engine/equal_training.h"

namespace optimus {
namespace {

TEST(Parallel, TensorParallelEqualsOneDevice) {
  for (const char* preset : {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"})
    for (const int tp : {2, 3})
      for (const bool is_sequence_parallel : {false, true}) {
        UniformPlan shape{.microbatch = 3, .batch = 5};
        shape.strategy.tp = tp, shape.strategy.sequence_parallel = is_sequence_parallel;
        SCOPED_TRACE(preset);
        expect_equal_to_one_device(model_of(preset, 6, 2), shape);
      }
}

TEST(Parallel, PipelinesEqualOneDevice) {
  for (const char* preset : {"gpt2", "llama3-8b", "bert-base"})
    for (const Schedule schedule :
         {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zero_bubble})
      for (const int pp : {2, 3}) {
        UniformPlan shape{.pp = pp, .microbatch = 1, .batch = 5};
        shape.schedule = schedule;
        if (schedule == Schedule::interleaved) shape.chunks = 2;
        SCOPED_TRACE(preset);
        expect_equal_to_one_device(model_of(preset, 4, 2, 6), shape);
      }
}

TEST(Parallel, ContextParallelEqualsOneDevice) {
  for (const char* preset : {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"})
    for (const int cp : {2, 3, 5})
      for (const int tp : {1, 2}) {
        UniformPlan shape{.microbatch = 2, .batch = 3};
        shape.strategy.cp = cp, shape.strategy.tp = tp, shape.strategy.sequence_parallel = cp == 2;
        if (tp == 1) shape.strategy.sequence_parallel = false;
        SCOPED_TRACE(preset);
        if (cp * tp <= 8) expect_equal_to_one_device(model_of(preset, 4, 2), shape);
      }
}

TEST(Parallel, DataParallelAndZeroEqualOneDevice) {
  for (const char* preset : {"gpt2", "llama3-8b", "bert-base"})
    for (const int zero : {0, 1, 2, 3})
      for (const int group : {0, 2}) {
        if (zero == 0 && group > 0) continue;
        UniformPlan shape{.dp = 4, .microbatch = 1, .batch = 6};
        shape.strategy.zero = zero, shape.strategy.shard_group = group;
        SCOPED_TRACE(preset);
        expect_equal_to_one_device(model_of(preset, 4, 2), shape);
      }
}

// If the loss scale is too large, gradients overflow somewhere, on one device or on several. All ranks then
// skip the step and halve the scale.
TEST(Parallel, AllRanksSkipTheSameSteps) {
  const ModelSpec model = model_of("gpt2", 4, 2);
  struct Recorded {
    std::vector<bool> skipped;
    std::vector<double> scales;
    bool operator==(const Recorded&) const = default;
  };
  const auto train_fp16 = [&](const Plan& plan, int rank, Comm* comm) {
    Parameters parameters(plan, model, rank, test_device());
    parameters.initialize(5);
    EngineOptions options{.device = test_device(), .seed = 9};
    options.rank = rank, options.comm = comm, options.timeout = Seconds(60);
    Engine engine(plan, model, parameters, options);
    engine.loss_scale.value = 0x1p20;
    if (comm != nullptr)
      throw_if_failed(comm->connect(0, engine.groups(), Deadline::after(Seconds(60), "connecting")));
    Recorded seen;
    for (int step = 0; step < 14; ++step) {
      const Batch batch = make_batch(make_samples(0, plan.batch, model.vocab), plan, 0, 0, rank);
      const StepReport report = value_or_throw(engine.train_step(batch, {.learning_rate = 1e-4}));
      seen.skipped.push_back(report.is_skipped), seen.scales.push_back(report.loss_scale);
    }
    return seen;
  };
  UniformPlan shape{.batch = 6, .sequence_length = kLength, .precision = Precision::fp16};
  const Recorded one = train_fp16(uniform_plan(model, shape), 0, nullptr);
  EXPECT_TRUE(one.skipped.front()) << "the loss scale was not too large";
  EXPECT_FALSE(one.skipped.back()) << "the loss scale did not decrease";
  shape.pp = 2, shape.dp = 2, shape.strategy.tp = 2, shape.strategy.zero = 1;
  const Plan plan = uniform_plan(model, shape);
  ThreadWorld world(8);
  std::vector<Recorded> ranks(8);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 8; ++rank)
    threads.emplace_back([&, rank, comm = std::shared_ptr<Comm>(world.comm(rank))] {
      ranks[static_cast<std::size_t>(rank)] = train_fp16(plan, rank, comm.get());
    });
  for (std::thread& thread : threads) thread.join();
  for (const Recorded& seen : ranks) EXPECT_EQ(seen, ranks.front());
  EXPECT_TRUE(ranks.front().skipped.front());
  EXPECT_FALSE(ranks.front().skipped.back());
}

// A random plan with up to eight devices.
UniformPlan random_shape(const RandomKey& key, std::int64_t heads) {
  std::uint64_t next = 0;
  const auto below = [&](std::uint64_t bound) { return static_cast<int>(random_below(key, next++, bound)); };
  UniformPlan shape;
  LayerStrategy& s = shape.strategy;
  s.tp = 1 + below(std::min<std::uint64_t>(4, static_cast<std::uint64_t>(heads)));
  shape.pp = 1 + below(static_cast<std::uint64_t>(8 / s.tp));
  s.cp = 1 + below(static_cast<std::uint64_t>(8 / s.tp / shape.pp));
  shape.dp = 1 + below(static_cast<std::uint64_t>(8 / s.tp / shape.pp / s.cp));
  if (shape.pp > 1) {
    shape.schedule = static_cast<Schedule>(below(4));
    if (shape.schedule == Schedule::interleaved) shape.chunks = 2 + below(2);
  }
  s.sequence_parallel = s.tp > 1 && below(2) == 1;
  s.zero = below(4);
  if (s.zero > 0 && shape.dp % 2 == 0 && below(2) == 1) s.shard_group = 2;
  s.recompute = static_cast<RecomputeMode>(below(3));
  if (s.recompute == RecomputeMode::full) s.recompute_layers = 1 + below(2);
  shape.microbatch = 1 + below(2);
  shape.batch = 1 + below(9);
  return shape;
}

TEST(Parallel, RandomPlansEqualOneDevice) {
  const char* const seed = std::getenv("OPTIMUS_SEED");
  const bool is_long = std::getenv("OPTIMUS_LONG") != nullptr;
  const RandomKey key = RandomKey(seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10)).derive("parallel");
  const int count = is_long ? 600 : 40;
  const std::vector<std::string> presets = {"gpt2", "llama3-8b", "qwen3-0.6b", "bert-base"};
  for (int i = 0; i < count && !HasFailure(); ++i) {
    const RandomKey own = key.derive(static_cast<std::uint64_t>(i));
    const std::string& preset = presets[random_below(own, 100, presets.size())];
    const std::int64_t kv = 1 + static_cast<std::int64_t>(random_below(own, 101, 3)),
                       heads = kv * (1 + static_cast<std::int64_t>(random_below(own, 102, 3)));
    SCOPED_TRACE(fmt::format("plan {} of {}, {} heads, {} key/value heads", i, preset, heads, kv));
    const UniformPlan shape = random_shape(own, heads);
    const int layers = std::max(2, shape.pp * shape.chunks) + static_cast<int>(random_below(own, 103, 2));
    expect_equal_to_one_device(model_of(preset, heads, kv, layers), shape, 3);
  }
}

}  // namespace
}  // namespace optimus
