#include "simulate/simulate.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>

#include "cluster/standard.h"
#include "model/presets.h"
#include "plan/validate.h"
#include "schedule/execute.h"
#include "simulate/report.h"

namespace optimus {
namespace {

// A plan on a cluster with everything that a Setup refers to.
struct Case {
  ModelSpec model;
  Plan plan;
  Cluster cluster;
  DeviceMap map;
  Setup setup() const { return {plan, model, cluster, map, optimus_software(), format_of(plan.precision)}; }
};

Case make_case(const std::string& model_name, const std::string& cluster, const UniformPlan& shape) {
  ModelSpec model = *find_preset(model_name);
  Plan plan = uniform_plan(model, shape);
  Cluster machines{standard_cluster(cluster)};
  const int devices = num_devices(plan);
  return {std::move(model), std::move(plan), std::move(machines), DeviceMap::identity(devices)};
}

// Constants without the effects that only this simulator adds to the rules of schedule/execute.h.
Constants plain_constants() {
  Constants constants;
  constants.interference = 0, constants.slot_seconds = 0, constants.straggler_loss = 0,
  constants.step_seconds = 0;
  return constants;
}

// The same instructions with the same prices, device by device, without approximation.
double exact_seconds(const Case& one, const Constants& constants) {
  const ModelWork work = work_of(one.model, one.plan.sequence_length);
  const std::vector<Program> programs = compile_all(one.plan, one.model);
  std::map<const Program*, std::vector<double>> prices;
  for (const Program& program : programs) {
    const PricedProgram priced(one.setup(), work, program, one.map[VirtualDevice{program.device}]);
    prices[&program] = priced.price(constants);
  }
  const LinkCost links(constants);
  const auto timeline = execute(programs, [&](const Program& program, const Instruction& instruction) {
    if (instruction.peer >= 0)
      return links.message_seconds(
          one.cluster.link(one.map[VirtualDevice{program.device}], one.map[VirtualDevice{instruction.peer}]),
          static_cast<double>(instruction.bytes));
    return prices[&program][static_cast<std::size_t>(&instruction - program.instructions.data())];
  });
  EXPECT_TRUE(timeline.has_value());
  return timeline->length;
}

// The approximation simulates one device per stage and two micro-batches. Differences: a slot ends when its
// last tensor-parallel reduction is complete, while execute() lets the first GEMM of the next slot overlap
// with it (at most one such reduction per slot); messages do not wait for buffers (at most one message per
// slot, relevant only if messages are long compared to slots). On machines with links that are fast compared
// to their GEMMs, the two differ only slightly in either direction.
TEST(Simulate, MatchesExactExecution) {
  EXPECT_TRUE(rc::check([] {
    UniformPlan shape;
    shape.pp = *rc::gen::inRange(1, 4), shape.dp = *rc::gen::inRange(1, 3);
    shape.strategy.tp = *rc::gen::element(1, 2);
    shape.strategy.sequence_parallel = shape.strategy.tp > 1 && *rc::gen::arbitrary<bool>();
    shape.strategy.zero = shape.dp > 1 ? *rc::gen::inRange(0, 4) : 0;
    shape.strategy.recompute = *rc::gen::element(RecomputeMode::none, RecomputeMode::full);
    shape.microbatch = *rc::gen::inRange(1, 4);
    shape.batch = static_cast<std::int64_t>(shape.dp) * shape.microbatch * *rc::gen::inRange(1, 7);
    shape.sequence_length = 1024;
    shape.schedule = *rc::gen::element(Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble);
    Case one =
        make_case("gpt3-1.3b", "a100x" + std::to_string(shape.pp * shape.dp * shape.strategy.tp), shape);
    one.plan.copy_distance = shape.strategy.zero > 0 ? *rc::gen::inRange(0, 2) : 0;
    RC_PRE(!find_problem(one.plan, one.model));
    const Constants constants = plain_constants();
    const double exact = exact_seconds(one, constants), quick = StepSimulator(one.setup()).seconds(constants);
    RC_ASSERT(quick > 0.97 * exact);
    RC_ASSERT(quick < 1.08 * exact);
  }));
}

TEST(Simulate, SplitsAddUpToStep) {
  UniformPlan shape{.pp = 4, .dp = 2, .batch = 64, .sequence_length = 2048};
  shape.strategy.tp = 2, shape.strategy.zero = 1;
  const Case one = make_case("gpt3-13b", "h100x16", shape);
  const StepPrediction step = StepSimulator(one.setup()).run(fitted_constants());
  EXPECT_NEAR(step.split.total(), step.seconds, 1e-9);
  ASSERT_EQ(step.stages.size(), 4u);
  for (const StagePrediction& stage : step.stages) EXPECT_NEAR(stage.split.total(), step.seconds, 1e-9);
  EXPECT_GT(step.mfu, 0.1);
  EXPECT_LT(step.mfu, 0.7);
  // The first stage saves the most micro-batches.
  EXPECT_GT(step.stages[0].memory.activations, step.stages[3].memory.activations);
}

TEST(Simulate, SlowDeviceSlowsStep) {
  UniformPlan shape{.pp = 2, .dp = 2, .batch = 16, .sequence_length = 1024};
  Case one = make_case("gpt3-1.3b", "a100x4", shape);
  const double before = StepSimulator(one.setup()).seconds(fitted_constants());
  HardwareProfile profile = one.cluster.profile();
  profile.speed_factors = {{3, 0.5}};
  one.cluster = Cluster(profile);
  const double after = StepSimulator(one.setup()).seconds(fitted_constants());
  EXPECT_GT(after, 1.5 * before);
}

TEST(Simulate, MemoryMatchesPrograms) {
  // Plans of the Optimus engine: compares the formula with the peak size of the programs' buffers.
  EXPECT_TRUE(rc::check([] {
    UniformPlan shape;
    shape.pp = *rc::gen::inRange(1, 4), shape.dp = *rc::gen::inRange(1, 3);
    shape.strategy.tp = *rc::gen::element(1, 2);
    shape.strategy.zero = shape.dp > 1 ? *rc::gen::inRange(0, 4) : 0;
    shape.schedule = *rc::gen::element(Schedule::gpipe, Schedule::one_f_one_b);
    shape.strategy.recompute =
        *rc::gen::element(RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full);
    shape.microbatch = *rc::gen::inRange(1, 4);
    shape.batch = static_cast<std::int64_t>(shape.dp) * shape.microbatch * *rc::gen::inRange(1, 7);
    shape.sequence_length = 512;
    const std::string model = *rc::gen::element<std::string>("gpt3-760m", "llama2-7b");  // tied and untied
    Case one = make_case(model, "a100x" + std::to_string(shape.pp * shape.dp * shape.strategy.tp), shape);
    one.plan.copy_distance = shape.strategy.zero > 0 ? *rc::gen::inRange(0, 2) : 0;
    const int stage = *rc::gen::inRange(0, shape.pp);
    const Program program = compile(
        one.plan, one.model, one.plan.pipelines[0].stages[static_cast<std::size_t>(stage)].devices.front());
    const MemoryUse exact = memory_use(program);
    const StageMemory quick = stage_memory(one.setup(), 0, stage, fitted_constants());
    RC_ASSERT(quick.weights == exact.weights);
    RC_ASSERT(quick.gradients == exact.gradients);
    RC_ASSERT(quick.optimizer == exact.optimizer);
    // Buffers of neighbouring blocks are live at the same time: gradients of two blocks, a boundary, a whole
    // gradient before its reduction.
    RC_ASSERT(quick.total / exact.peak > 0.9);
    RC_ASSERT(quick.total / exact.peak < 1.1);
  }));
}

TEST(Simulate, RunningTimeIsIndependentOfDevices) {
  UniformPlan shape{.pp = 16, .dp = 780, .batch = 780 * 32, .sequence_length = 8192};
  shape.strategy.tp = 8, shape.strategy.sequence_parallel = true, shape.strategy.zero = 1;
  const Case one = make_case("llama3-405b", "h100x99840", shape);
  const StepPrediction step = StepSimulator(one.setup()).run(fitted_constants());
  EXPECT_GT(step.seconds, 1);
  EXPECT_LT(step.seconds, 1000);
}

// An MoE model, with the same rules as above.
TEST(Simulate, MoeMatchesExactExecution) {
  EXPECT_TRUE(rc::check([] {
    UniformPlan shape;
    shape.pp = *rc::gen::inRange(1, 4), shape.dp = *rc::gen::element(1, 2, 4);
    shape.strategy.tp = *rc::gen::element(1, 2);
    shape.strategy.sequence_parallel = shape.strategy.tp > 1;
    const int width = shape.dp * shape.strategy.tp;
    shape.strategy.ep = width > 1 ? *rc::gen::element(1, width) : 1;
    // MoE weights are large compared to the work per token. With ZeRO 1 and 2 the next step hides their
    // gathers; with ZeRO 3 a pipeline's bubbles hide them, which this simulator does not model.
    shape.strategy.zero = shape.dp > 1 && shape.pp == 1 ? *rc::gen::element(0, 3) : 0;
    shape.microbatch = *rc::gen::inRange(1, 4);
    shape.batch = static_cast<std::int64_t>(shape.dp) * shape.microbatch * *rc::gen::inRange(1, 7);
    shape.sequence_length = 1024;
    Case one = make_case("qwen3-30b-a3b", "a100x" + std::to_string(shape.pp * width), shape);
    one.model.layers = 6, one.model.mixture.first_layer = 1;
    one.plan = uniform_plan(one.model, shape);
    RC_PRE(!find_problem(one.plan, one.model));
    const Constants constants = plain_constants();
    const double exact = exact_seconds(one, constants), quick = StepSimulator(one.setup()).seconds(constants);
    RC_ASSERT(quick > 0.97 * exact);
    RC_ASSERT(quick < 1.08 * exact);
  }));
}

TEST(Simulate, ExpertsAcrossNodesCostMore) {
  UniformPlan shape{.dp = 32, .microbatch = 1, .batch = 64, .sequence_length = 4096};
  const auto step = [&](int ep) {
    shape.strategy.ep = ep, shape.strategy.zero = 1;
    const Case one = make_case("qwen3-30b-a3b", "h100x32", shape);
    EXPECT_EQ(find_problem(one.plan, one.model), std::nullopt);
    return StepSimulator(one.setup()).run(fitted_constants());
  };
  const StepPrediction inside = step(8), across = step(32);
  EXPECT_GT(across.split.tensor, 2 * inside.split.tensor);
  EXPECT_LT(across.stages[0].memory.weights, inside.stages[0].memory.weights);
}

TEST(Simulate, InstructionsFillSlots) {
  UniformPlan shape{.pp = 3, .dp = 2, .batch = 12, .sequence_length = 1024};
  shape.strategy.tp = 2, shape.strategy.zero = 1;
  const Case one = make_case("gpt3-1.3b", "a100x12", shape);
  const StepSimulator simulator(one.setup());
  const StepPrediction step = simulator.run(fitted_constants());
  const std::vector<TracedInstruction> all = simulator.instructions(fitted_constants(), 1'000'000);
  std::map<std::tuple<int, Lane>, double> free;
  std::map<int, double> compute;
  for (const TracedInstruction& at : all) {
    EXPECT_LE(free[std::tuple(at.stage, at.lane)], at.start + 1e-12) << at.name;  // one at a time
    free[std::tuple(at.stage, at.lane)] = at.end;
    if (at.lane == Lane::compute) compute[at.stage] += at.end - at.start;
  }
  // Interference is added to a slot as a whole, so compute may appear slightly shorter than its share of the
  // step.
  for (const StagePrediction& stage : step.stages) {
    const double expected = stage.split.compute + stage.split.optimizer;
    EXPECT_LE(compute[stage.stage], expected * 1.001) << stage.stage;
    EXPECT_GE(compute[stage.stage], expected * 0.9) << stage.stage;
  }
  // 8 layers per stage, forward in two halves, 6 micro-batches.
  EXPECT_EQ(std::count_if(all.begin(), all.end(),
                          [](const TracedInstruction& instruction) {
                            return instruction.name.starts_with("forward layer");
                          }),
            24 * 2 * 6);
  EXPECT_TRUE(std::any_of(all.begin(), all.end(), [](const TracedInstruction& instruction) {
    return instruction.name == "backward_weight layer 23 mlp, micro-batch 5";
  }));
  EXPECT_TRUE(simulator.instructions(fitted_constants(), 10).empty());
  const Json trace = Json::parse(perfetto_text(step, all));
  EXPECT_GT(trace["traceEvents"].size(), all.size());
}

TEST(Simulate, RefusesTooManySlots) {
  const Case one = make_case("gpt3-13b", "a100x40", {.pp = 40, .batch = 1'000'000, .sequence_length = 128});
  EXPECT_THROW(StepSimulator{one.setup()}, UserError);
}

TEST(Report, WritesPicturesAndFiles) {
  UniformPlan shape{.pp = 2, .dp = 1, .batch = 4, .sequence_length = 1024};
  const Case one = make_case("gpt2", "a100x2", shape);
  const StepPrediction step = StepSimulator(one.setup()).run(fitted_constants());
  const std::string drawn = draw_step(step, 60);
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), '\n'), 2);
  const Json trace = Json::parse(perfetto_text(step, {}));
  int slots = 0;
  for (const Json& event : trace["traceEvents"]) slots += event["ph"] == "X";
  EXPECT_EQ(slots, 2 * (4 * 2) + 2);
  const OrderedJson json = prediction_json(step, one.setup());
  for (const char* key : {"step_seconds", "tokens_per_second", "mfu", "memory_bytes", "time"})
    EXPECT_TRUE(json.contains(key));
  for (const char* key : {"compute", "tp", "pp", "dp", "bubble", "optimizer"})
    EXPECT_TRUE(json["time"].contains(key));
  EXPECT_NE(prediction_text(step, one.setup()).find("a step takes"), std::string::npos);
}

}  // namespace
}  // namespace optimus
