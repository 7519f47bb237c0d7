// The times of a step's instructions: each has one, and they are consistent with the order in the program.
#include "engine/instruction_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <thread>

#include "comm/thread_comm.h"
#include "engine/engine.h"
#include "engine/test_device.h"
#include "model/open.h"
#include "schedule/program.h"

namespace optimus {
namespace {

constexpr std::int64_t kLength = 8, kBatch = 4;

ModelSpec small_model() {
  return with_overrides(
      open_model("gpt2"),
      {.layers = 2, .hidden = 16, .heads = 4, .head_dim = 4, .ffn = 24, .vocab = 31, .max_positions = 16});
}

std::vector<Sample> samples() {
  std::vector<Sample> result(kBatch);
  for (Sample& sample : result)
    for (std::int64_t i = 0; i < kLength; ++i) {
      sample.inputs.push_back(static_cast<TokenId>(3 * i % 31)), sample.targets.push_back(7);
      sample.positions.push_back(static_cast<std::int32_t>(i)), ++sample.num_targets;
    }
  return result;
}

struct Recorded {
  Program program;
  std::vector<InstructionTime> first, second, evaluated, not_requested, computing;
};

// Spans: the forwards of consecutive layers together; of the backward only the input gradients, each alone.
std::vector<int> some_spans(const Program& program) {
  std::vector<int> spans;
  for (const Instruction& at : program.instructions) {
    const int index = static_cast<int>(spans.size());
    const bool is_same_span = index > 0 && at.op == Op::forward &&
                              program.instructions[static_cast<std::size_t>(index - 1)].op == Op::forward;
    spans.push_back(is_same_span                                          ? spans.back()
                    : at.op == Op::forward || at.op == Op::backward_input ? index
                                                                          : -1);
  }
  return spans;
}

Recorded run_rank(const ModelSpec& model, const Plan& plan, int rank, Comm& comm) {
  const at::Device device = test_device();
  Parameters parameters(plan, model, rank, device);
  parameters.initialize(1);
  Engine engine(plan, model, parameters, {.device = device, .rank = rank, .comm = &comm});
  throw_if_failed(comm.connect(0, engine.groups(), Deadline::after(Seconds(60), "connecting")));
  const Batch batch = make_batch(samples(), plan, 0, 0, rank);
  const auto step = [&] { value_or_throw(engine.train_step(batch, {.learning_rate = 1e-3})); };
  InstructionLog log(device);
  Recorded seen{engine.program(), {}, {}, {}, {}, {}};
  step();
  seen.not_requested = log.take();
  engine.instruction_log = &log;
  step(), seen.first = log.take();
  log.begin_times();
  step(), seen.second = log.take();
  value_or_throw(engine.evaluate(batch)), seen.evaluated = log.take();
  InstructionLog some(device, {some_spans(engine.program()), {}});
  engine.instruction_log = &some;
  step(), some.take();
  some.begin_times();  // the events of the first step are reused
  step(), seen.computing = some.take();
  return seen;
}

std::vector<Recorded> run(const ModelSpec& model, const Plan& plan) {
  ThreadWorld world(num_devices(plan));
  std::vector<Recorded> seen(static_cast<std::size_t>(num_devices(plan)));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_devices(plan); ++rank)
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Comm> comm = world.comm(rank);
      seen[static_cast<std::size_t>(rank)] = run_rank(model, plan, rank, *comm);
    });
  for (std::thread& thread : threads) thread.join();
  return seen;
}

// Every instruction appears once, and none starts before the instructions that it waits for have ended.
void expect_order(const Program& program, const std::vector<InstructionTime>& times) {
  ASSERT_EQ(times.size(), program.instructions.size());
  for (std::size_t i = 0; i < times.size(); ++i) {
    ASSERT_EQ(times[i].instruction, static_cast<int>(i));
    EXPECT_GE(times[i].start, 0);
    EXPECT_LE(times[i].start, times[i].end) << text(program.instructions[i].op);
    for (const int wait : program.waits(program.instructions[i]))
      EXPECT_LE(times[static_cast<std::size_t>(wait)].end, times[i].start)
          << text(program.instructions[i].op);
  }
}

TEST(InstructionLog, EveryInstructionIsTimed) {
  const ModelSpec model = small_model();
  for (const int zero : {0, 3}) {
    UniformPlan shape{
        .dp = 2, .microbatch = 1, .batch = kBatch, .sequence_length = kLength, .precision = Precision::fp32};
    shape.strategy.tp = 2, shape.strategy.zero = zero;
    for (const Recorded& rank : run(model, uniform_plan(model, shape))) {
      EXPECT_TRUE(rank.not_requested.empty());
      expect_order(rank.program, rank.first), expect_order(rank.program, rank.second);
      EXPECT_FALSE(rank.evaluated.empty());
      for (const InstructionTime& time : rank.evaluated)
        EXPECT_NE(rank.program.instructions[static_cast<std::size_t>(time.instruction)].op, Op::optimizer);
    }
  }
}

TEST(InstructionLog, TimesOnlySelectedInstructions) {
  const ModelSpec model = small_model();
  const Plan plan = uniform_plan(model, {.pp = 2,
                                         .dp = 2,
                                         .microbatch = 1,
                                         .batch = kBatch,
                                         .sequence_length = kLength,
                                         .precision = Precision::fp32});
  for (const Recorded& rank : run(model, plan)) {
    const std::vector<int> spans = some_spans(rank.program);
    ASSERT_EQ(std::ssize(rank.computing),
              std::count_if(spans.begin(), spans.end(), [](int s) { return s >= 0; }));
    double before = 0;
    int num_nonzero = 0;
    for (const InstructionTime& time : rank.computing) {
      const int first = spans[static_cast<std::size_t>(time.instruction)];
      EXPECT_GE(time.start, before) << "spans must not overlap";
      EXPECT_GE(time.end, time.start);
      EXPECT_TRUE(first == time.instruction || time.end == time.start);
      before = time.end, num_nonzero += time.end > time.start;
    }
    EXPECT_LT(num_nonzero, std::ssize(rank.computing)) << "some instructions are timed together";
  }
}

// A transfer reports its own duration, immediately or when the device has finished it.
TEST(InstructionLog, TransfersReportTheirDuration) {
  class Carried final : public Pending {
   public:
    Carried(std::optional<double> first, std::optional<double> later) : first_(first), later_(later) {}
    bool is_done() override { return true; }
    CommOutcome<void> wait(const Deadline&) override { return {}; }
    std::optional<Seconds> duration() const override {
      const std::optional<double> known = std::exchange(first_, later_);
      return known ? std::optional(Seconds(*known)) : std::nullopt;
    }

   private:
    mutable std::optional<double> first_, later_;
  };
  InstructionLog log(test_device(), {{-1, 1, -1, -1, -1}, {true, false, true, true, false}});
  const std::array<std::pair<std::optional<double>, std::optional<double>>, 4> reported = {
      {{0.25, 0.25}, {}, {std::nullopt, 0.5}, {std::nullopt, std::nullopt}}};  // when it ended, and later
  for (std::size_t i = 0; i < 5; ++i) {
    std::unique_ptr<Pending> pending;
    if (i == 0 || i == 2 || i == 3)
      pending = std::make_unique<Carried>(reported[i].first, reported[i].second);
    log.begin(i);
    log.mark_executed(i, pending.get());
    if (pending != nullptr) log.end(i, std::move(pending));
  }
  const std::vector<InstructionTime> times = log.take();
  ASSERT_EQ(times.size(), 3U) << "the fourth has no known duration, and the last was not requested";
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(times[i].instruction, static_cast<int>(i));
    EXPECT_GE(times[i].start, 0);
  }
  EXPECT_NEAR(times[0].end - times[0].start, 0.25, 1e-9);
  EXPECT_NEAR(times[2].end - times[2].start, 0.5, 1e-9);
  EXPECT_TRUE(log.take().empty());
}

TEST(InstructionLog, WorksOnOneDevice) {
  const ModelSpec model = small_model();
  const Plan plan = uniform_plan(
      model, {.microbatch = 2, .batch = kBatch, .sequence_length = kLength, .precision = Precision::fp32});
  const std::vector<Recorded> seen = run(model, plan);
  expect_order(seen[0].program, seen[0].first);
}

}  // namespace
}  // namespace optimus
