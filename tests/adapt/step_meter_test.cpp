// Measurements of steps, and the calibration from them.
#include "adapt/step_meter.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <numeric>

#include "adapt/calibration.h"
#include "cluster/cluster.h"
#include "cluster/standard.h"
#include "cost/link_cost.h"
#include "model/operations.h"
#include "model/presets.h"

namespace optimus {
namespace {

// Each instruction takes its predicted time multiplied by `factor`. All messages but the last of each channel
// take `wait` seconds longer.
RankStep measured(const Plan& plan, const ModelSpec& model, int device, double factor, double wait) {
  const Program program = compile(plan, model, device);
  const std::size_t size = program.instructions.size();
  StepMeter meter(program, plan, model, std::vector<double>(size, 0.01));
  std::vector<InstructionTime> times;
  std::array<std::size_t, kChannels> last{};
  for (std::size_t i = 0; i < size; ++i)
    if (const auto [channel, bytes] = meter.message(i); bytes > 0)
      last[static_cast<std::size_t>(channel)] = i;
  for (std::size_t i = 0; i < size; ++i) {
    const auto [channel, bytes] = meter.message(i);
    const double seconds =
        bytes > 0 ? bytes * 1e-9 + (i == last[static_cast<std::size_t>(channel)] ? 0 : wait) : 0.01 * factor;
    times.push_back({static_cast<int>(i), 1, 1 + seconds});
  }
  meter.observe({2, 0.1, 300, 300, 3, 30}, times);
  meter.observe({4, 0.3, 100, 100, 1, 10}, times);
  return meter.take();
}

TEST(StepMeter, AveragesStepsAndBlockRates) {
  const ModelSpec model = *find_preset("gpt2");
  UniformPlan shape{.pp = 2, .dp = 2, .microbatch = 1, .batch = 8, .sequence_length = 64};
  const Plan plan = uniform_plan(model, shape);
  for (int device = 0; device < 4; ++device) {
    const RankStep step = measured(plan, model, device, 1.5, 0);
    EXPECT_EQ(step.rank, device);
    EXPECT_EQ(step.group, device / 2) << "two replicas of each stage";
    EXPECT_DOUBLE_EQ(step.seconds, 3);
    EXPECT_DOUBLE_EQ(step.data_wait, 0.2);
    EXPECT_EQ(step.lengths, (LengthSum{.sequences = 4, .tokens = 40, .squares = 400}));
    const bool is_first = step.group == 0;
    for (const BlockRole role : {BlockRole::embedding, BlockRole::layer, BlockRole::head}) {
      const BlockTime& rate = step.rates[static_cast<std::size_t>(role)];
      const bool has = role == BlockRole::layer || (role == BlockRole::embedding) == is_first;
      EXPECT_EQ(rate.predicted > 0, has);
      if (has) {
        EXPECT_NEAR(rate.seconds / rate.predicted, 1.5, 1e-12);
      }
    }
  }
}

// Longer documents are more work for attention; the device is not slower.
TEST(StepMeter, WorkFollowsSequenceLengths) {
  ModelSpec model = *find_preset("gpt2");
  const std::int64_t length = 1024;
  const Plan plan = uniform_plan(model, {.dp = 2, .microbatch = 2, .batch = 4, .sequence_length = length});
  const Program program = compile(plan, model, 0);
  StepMeter meter(program, plan, model, {});
  const double whole = 2.0 * length * length;  // two sequences of one document each
  meter.observe({1, 0, whole, whole}, {});
  EXPECT_DOUBLE_EQ(meter.take().relative_work, 1);
  meter.observe({1, 0, whole / 4, whole}, {});
  meter.observe({1, 0, whole / 4, whole}, {});
  const double one = model_flops_per_token(model, 1), more = model_flops_per_token(model, length) - one;
  const double causal = 0.5 * more * length / (length - 1), linear = one - more / (length - 1);
  const double attention = causal / (linear + causal);
  EXPECT_NEAR(meter.take().relative_work, 1 - 0.75 * attention, 1e-12);
  meter.observe({1, 0}, {});
  EXPECT_DOUBLE_EQ(meter.take().relative_work, 1) << "lengths are not known";
}

// On GPUs, instructions are timed only in some steps. Their times are compared with the work of these steps.
TEST(StepMeter, UntimedStepsDoNotAffectInstructionTimes) {
  const ModelSpec model = *find_preset("gpt2");
  const Plan plan = uniform_plan(model, {.dp = 2, .microbatch = 2, .batch = 4, .sequence_length = 64});
  const Program program = compile(plan, model, 0);
  const std::size_t size = program.instructions.size();
  StepMeter meter(program, plan, model, std::vector<double>(size, 0.01));
  std::vector<InstructionTime> times;
  double computing = 0;
  for (std::size_t i = 0; i < size; ++i)
    if (is_computing(program.instructions[i].op))
      times.push_back({static_cast<int>(i), 1, 1.02}), computing += 0.02;
  const MeasuredStep with_long{1, 0, 4, 1}, usual{3, 0, 1, 1};
  meter.observe(with_long, {});
  meter.observe(usual, times);
  meter.observe(with_long, {});
  const RankStep step = meter.take();
  EXPECT_NEAR(step.seconds, 5.0 / 3, 1e-12) << "mean over all steps";
  EXPECT_NEAR(step.compute_seconds(), computing, 1e-9);
  EXPECT_DOUBLE_EQ(step.relative_work, 1) << "work of the timed step";
  const BlockTime& rate = step.rates[static_cast<std::size_t>(BlockRole::layer)];
  EXPECT_NEAR(rate.seconds / rate.predicted, 2, 1e-9);
  meter.observe(with_long, {});
  EXPECT_GT(meter.take().relative_work, 1) << "take() has reset the sums";
}

// The layers of a stage form one span for each micro-batch and direction. Embedding and head are spans of
// their own, and so is what waits for other ranks.
TEST(StepMeter, FindsComputingSpans) {
  const ModelSpec model = *find_preset("gpt2");
  const auto count = [&](const Plan& plan, int device) {
    const Program program = compile(plan, model, device);
    const std::vector<int> spans = computing_spans(program, model);
    int num = 0;
    for (int i = 0; i < std::ssize(spans); ++i) {
      const int first = spans[static_cast<std::size_t>(i)];
      EXPECT_EQ(first >= 0, is_computing(program.instructions[static_cast<std::size_t>(i)].op));
      if (first < 0) continue;
      num += first == i;
      for (int other = first; other <= i; ++other) EXPECT_EQ(spans[static_cast<std::size_t>(other)], first);
    }
    return num;
  };
  const Plan stages = uniform_plan(model, {.pp = 2, .microbatch = 1, .batch = 4, .sequence_length = 64});
  EXPECT_EQ(count(stages, 0), 4 * 4 + 2) << "four micro-batches: embedding and layers, forward and backward; "
                                            "two of these start to receive the next gradient";
  UniformPlan shape{.dp = 2, .microbatch = 1, .batch = 4, .sequence_length = 64};
  shape.strategy.zero = 3;
  EXPECT_GT(count(uniform_plan(model, shape), 0), 2 * 12) << "each layer waits for its weights";
}

TEST(StepMeter, CountsOnlyTheFastestMessage) {
  const ModelSpec model = *find_preset("gpt2");
  const Plan plan =
      uniform_plan(model, {.pp = 2, .dp = 2, .microbatch = 1, .batch = 8, .sequence_length = 64});
  const RankStep first = measured(plan, model, 0, 1, 0.5), last = measured(plan, model, 2, 1, 0.5);
  const auto rate = [](const RankStep& step, Channel channel) {
    const LinkTime& link = step.links[static_cast<std::size_t>(channel)];
    return link.bytes > 0 ? link.seconds / link.bytes : 0;
  };
  EXPECT_NEAR(rate(first, Channel::next), 1e-9, 1e-15);
  EXPECT_NEAR(rate(first, Channel::data), 1e-9, 1e-15);
  EXPECT_EQ(rate(first, Channel::previous), 0) << "it is the first stage";
  EXPECT_EQ(rate(first, Channel::tensor), 0) << "no tensor parallelism";
  EXPECT_NEAR(rate(last, Channel::previous), 1e-9, 1e-15);
  EXPECT_EQ(rate(last, Channel::next), 0);
}

TEST(StepMeter, ComputesBytesOnTheWire) {
  Group four{Role::shard, {0, 1, 2, 3}};
  Instruction sum{.op = Op::reduce_gradients};
  sum.group = 0, sum.bytes = 400;
  EXPECT_EQ(bytes_on_the_wire(sum, &four), 300) << "each keeps its shard";
  four.role = Role::replica;
  EXPECT_EQ(bytes_on_the_wire(sum, &four), 600) << "all ranks get the whole sum";
  Instruction message{.op = Op::send};
  message.bytes = 400;
  EXPECT_EQ(bytes_on_the_wire(message, nullptr), 400);
}

// A calibration from one plan predicts the times of another plan's ranks.
TEST(Calibration, PredictsBaselinesOfAnotherPlan) {
  const ModelSpec model = *find_preset("gpt2");
  const Cluster cluster(standard_cluster("cpux4"));
  const DeviceMap map = DeviceMap::identity(4);
  const Plan copies = uniform_plan(model, {.dp = 4, .microbatch = 1, .batch = 8, .sequence_length = 64});
  const Plan stages = uniform_plan(model, {.pp = 4, .microbatch = 1, .batch = 8, .sequence_length = 64});
  const Topology topology(copies, cluster, map), other(stages, cluster, map);
  const std::vector<StageWork> work = stage_work(copies, model, cluster),
                               next = stage_work(stages, model, cluster);
  ASSERT_EQ(next.size(), 4U);
  Calibration calibration;
  EXPECT_TRUE(calibration.baselines(next, other).empty()) << "no steps were measured yet";
  // Embedding, layers and head take 3, 2 and 1.2 times the predicted time.
  const std::array<double, kBlockRoles> factors = {3, 2, 1.2};
  for (int step = 1; step <= 10; ++step) {
    Observation seen{.step = step};
    for (int rank = 0; rank < 4; ++rank) {
      RankStep rank_step{.rank = rank};
      for (std::size_t role = 0; role < kBlockRoles; ++role)
        rank_step.rates[role] = {work[0].compute[role] * factors[role], work[0].compute[role]};
      rank_step.links[static_cast<std::size_t>(Channel::data)] = {
          1000, 4000 * work[0].links[static_cast<std::size_t>(Channel::data)]};
      seen.add(rank_step);
    }
    calibration.learn(seen, work, topology);
  }
  const auto usual = calibration.baselines(next, other);
  for (int stage = 0; stage < 4; ++stage) {
    double expected = 0;
    for (std::size_t role = 0; role < kBlockRoles; ++role)
      expected += next[static_cast<std::size_t>(stage)].compute[role] * factors[role];
    EXPECT_NEAR(usual.at({stage, Measure::compute}), expected, 1e-9 * expected);
    EXPECT_FALSE(usual.contains({stage, Measure::next})) << "the channel was not measured";
  }
  EXPECT_NEAR(*calibration.rate(BlockRole::layer), 2, 1e-9);
  EXPECT_NEAR(calibration.uncertainty(BlockRole::layer), 0, 1e-9);
  const HardwareProfile refreshed = calibration.refreshed(cluster.profile());
  EXPECT_NEAR(refreshed.types[0].peak.fp32, cluster.profile().types[0].peak.fp32 / 2, 1);
  EXPECT_NEAR(refreshed.groups[0].domain_link.bytes_per_second,
              cluster.profile().groups[0].domain_link.bytes_per_second / 4, 1);
}

// The cost model predicts the measured times for the refreshed machines: for slow and fast networks, and for
// nodes with one or several devices. In a probe, one device per node uses the network alone.
TEST(Calibration, RefreshedMachinesMatchProbe) {
  const LinkCost cost(fitted_constants());
  for (const int each : {1, 4})
    for (const double slower : {0.7, 3.0, 40.0}) {
      SCOPED_TRACE(fmt::format("{} devices per node, {}x", each, slower));
      HardwareProfile machines = standard_cluster("a100x16");
      machines.groups[0].devices_per_node = machines.groups[0].devices_per_domain = each;
      const Cluster cluster(machines);
      const auto message = [&](const HardwareProfile& of, bool is_alone) {
        const Cluster own(of);
        Link link = own.link(Device{0}, Device{each});
        if (is_alone) link.shared_bytes_per_second = link.bytes_per_second;
        return cost.message_seconds(link, 1 << 19);
      };
      const auto ring = [&](const HardwareProfile& of) {
        std::vector<int> all(16);
        std::iota(all.begin(), all.end(), 0);
        const Cluster own(of);
        return cost.collective_seconds(Collective::all_reduce, shape_of(all, own, DeviceMap::identity(16)),
                                       1 << 20);
      };
      ProbeResult seen;
      for (int node = 0; node < 16 / each; ++node)
        seen.network.push_back(slower * message(machines, true) / (1 << 19)), seen.bytes.push_back(1 << 19);
      seen.ring_bytes = 1 << 20, seen.ring_seconds = 2 * slower * ring(machines);
      Calibration calibration;
      calibration.learn(seen, cluster);
      EXPECT_EQ(calibration.ring_factor(machines), 1) << "no steps were measured yet";
      for (int step = 0; step < 8; ++step)
        calibration.learn(
            Observation{}, {},
            Topology(uniform_plan(*find_preset("gpt2"), {.batch = 1}), cluster, DeviceMap::identity(16)));
      const HardwareProfile refreshed = calibration.refreshed(machines);
      EXPECT_NEAR(message(refreshed, false) / message(machines, false), slower, 1e-6 * slower);
      EXPECT_NEAR(calibration.ring_factor(machines) * ring(refreshed), seen.ring_seconds,
                  1e-6 * seen.ring_seconds);
      EXPECT_EQ(calibration.missing_measurements(), ProbeRequest());
      seen.ring_seconds = 0;
      Calibration half;
      half.learn(seen, cluster);
      EXPECT_EQ(half.missing_measurements(), ProbeRequest{.ring = true});
    }
}
}  // namespace
}  // namespace optimus
