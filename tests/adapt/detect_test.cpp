// Detectors find lasting conditions within ten steps with the right location, and ignore noise. With
// OPTIMUS_LONG, the number of runs is the one of docs/results/adaptation.md.
#include "adapt/detect.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "adapt/detect_cases.h"
#include "adapt/finding_text.h"
#include "cluster/standard.h"
#include "model/presets.h"

namespace optimus {
namespace {

// A condition that this run can have; empty if the cause is impossible for it.
std::optional<Condition> random_condition(Dice& dice, const Case& one, const Topology& topology,
                                          Cause cause) {
  const double factor = std::exp(dice.between(std::log(1.3), std::log(5)));
  const int rank = dice.below(topology.num_ranks());
  if (cause == Cause::device) return Condition{cause, rank, factor};
  if (cause == Cause::host && topology.num_nodes() > 1)
    return Condition{cause, topology.node_of(rank), factor};
  if (cause == Cause::heavy_stage && topology.num_groups() > 1)
    return Condition{cause, topology.group_of(rank), factor};
  if (cause == Cause::data_loading ||
      (cause == Cause::uneven_lengths && one.plan.pipelines[0].stages[0].devices.size() > 1))
    return Condition{cause, 0, factor};
  if (cause != Cause::link) return std::nullopt;
  return Condition{cause, topology.node_of(rank), factor};
}

// The ranks of these locations, because the same ranks may be reported as devices, as a host or as a stage.
std::vector<int> ranks_of(const Topology& topology, Cause cause, const std::vector<int>& location) {
  std::vector<int> ranks;
  for (const int one : location) {
    if (cause == Cause::device) ranks.push_back(one);
    if (cause == Cause::host)
      ranks.insert(ranks.end(), topology.ranks_of_node(one).begin(), topology.ranks_of_node(one).end());
    if (cause == Cause::heavy_stage)
      ranks.insert(ranks.end(), topology.ranks_of_group(one).begin(), topology.ranks_of_group(one).end());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

bool is_about_ranks(Cause cause) {
  return cause == Cause::device || cause == Cause::host || cause == Cause::heavy_stage;
}

// Same cause and location. A node with one device is equal to that device, and a stage that fills a node is
// equal to that node.
bool is_right(const Topology& topology, const Condition& truth, const Finding& finding) {
  if (is_about_ranks(truth.cause) && is_about_ranks(finding.cause))
    return ranks_of(topology, truth.cause, {truth.location}) ==
           ranks_of(topology, finding.cause, finding.locations);
  if (truth.cause != finding.cause) return false;
  if (truth.cause != Cause::link) return true;
  return std::find(finding.locations.begin(), finding.locations.end(), truth.location) !=
         finding.locations.end();
}

struct Score {
  int injected = 0, found = 0, right = 0, links = 0, single = 0, quiet_steps = 0, false_alarms = 0;
  double steps_to_find = 0;
};

// Whether the condition slows a channel of the run by at least 1.3.
bool slows_a_link(SimulatedRun& run, const Condition& condition) {
  run.set({condition});
  double slowdown = 1;
  for (const int rank : run.topology().ranks_of_node(condition.location))
    for (std::size_t c = 0; c < kChannels; ++c)
      slowdown = std::max(slowdown, run.link_slowdown(rank, static_cast<Channel>(c)));
  run.set({});
  return slowdown >= 1.3;
}

// The embedding and the head make stages uneven from the start. That finding is correct, but it is not the
// injected one.
bool is_structural(const Finding& finding) {
  return finding.cause == Cause::heavy_stage && finding.begin_step <= 1;
}

// Runs `most` steps under the condition and counts what is found. before: findings from before the condition.
void score_detection(Detector& detector, SimulatedRun& run, const Condition& condition, int most,
                     const std::vector<Finding>& before, Score& score) {
  const Cause cause = condition.cause;
  bool is_found = false, has_right = false;
  for (int step = 1; step <= most; ++step) {
    has_right = false;
    for (const Finding& finding : detector.observe(run.next())) {
      const auto is_same = [&](const Finding& known) {
        return known.cause == finding.cause && known.locations == finding.locations;
      };
      if (std::any_of(before.begin(), before.end(), is_same) && cause != Cause::heavy_stage) continue;
      if (!is_found) is_found = true, score.steps_to_find += step;
      if (!is_right(run.topology(), condition, finding)) continue;
      has_right = true;
      if (cause == Cause::link && step == most) ++score.links, score.single += finding.locations.size() == 1;
    }
  }
  score.found += is_found, score.right += has_right;
}

// Adds one random run to the score. Conditions that slow no channel of the run down by 1.3 are skipped.
void inject(Dice& dice, Cause cause, const Noise& replayed, Score& score) {
  const Case one = random_case(dice);
  Noise noise = random_noise(dice);
  const bool is_recorded = !replayed.recorded.empty();
  if (is_recorded) noise = replayed;
  SimulatedRun run(one.plan, one.model, one.profile, noise, random_bits(dice.key, dice.drawn++));
  const std::optional<Condition> condition = random_condition(dice, one, run.topology(), cause);
  if (!condition || (cause == Cause::link && !slows_a_link(run, *condition))) return;
  Detector detector(run.topology());
  const int onset = 20 + dice.below(60);
  std::vector<Finding> before;
  for (int step = 0; step < onset; ++step) {
    before = detector.observe(run.next());
    for (const Finding& finding : before) score.false_alarms += is_structural(finding) ? 0 : 1;
  }
  score.quiet_steps += onset;
  run.set({*condition});
  ++score.injected;
  // Ten steps; with steps of milliseconds, the steps of one second and ten more.
  const int most = is_recorded ? 10 + static_cast<int>(1 / kRecordedSeconds) : 10;
  score_detection(detector, run, *condition, most, before, score);
}

// OPTIMUS_CAUSE restricts a long run to one cause.
bool is_selected(Cause cause) {
  const char* word = std::getenv("OPTIMUS_CAUSE");
  return word == nullptr || word_of(cause) == word;
}

constexpr Cause kInjected[] = {Cause::device,       Cause::host,        Cause::link,
                               Cause::data_loading, Cause::heavy_stage, Cause::uneven_lengths};

Score inject_many(std::uint64_t seed, int number, const Noise& replayed) {
  Score all;
  for (const Cause cause : kInjected) {
    if (!is_selected(cause)) continue;
    Score score;
    Dice dice{RandomKey(seed + static_cast<std::uint64_t>(held_out())).derive(word_of(cause))};
    for (int i = 0; i < number; ++i) inject(dice, cause, replayed, score);
    if (is_long_run())
      printf("%-15s injected %d found %d right %d steps to find %.1f; links %d, one node named %d\n",
             word_of(cause).c_str(), score.injected, score.found, score.right,
             score.steps_to_find / std::max(1, score.found), score.links, score.single);
    EXPECT_GE(score.found, score.injected * 0.99 - 1) << word_of(cause);
    all.injected += score.injected, all.found += score.found, all.right += score.right;
    all.quiet_steps += score.quiet_steps, all.false_alarms += score.false_alarms;
  }
  return all;
}

TEST(Detector, FindsLastingConditionsWithinTenSteps) {
  const Score all = inject_many(1, is_long_run() ? 1500 : 15, {});
  EXPECT_GE(all.found, 0.99 * all.injected) << all.found << " of " << all.injected;
  EXPECT_GE(all.right, 0.95 * all.injected) << all.right << " of " << all.injected;
}

TEST(Detector, FindsLastingConditionsUnderRecordedNoise) {
  const Score all = inject_many(2, is_long_run() ? 1000 : 8, replayed_noise());
  EXPECT_GE(all.found, 0.99 * all.injected) << all.found << " of " << all.injected;
  EXPECT_GE(all.right, 0.95 * all.injected) << all.right << " of " << all.injected;
}

// The number of false alarms, each counted once.
int false_alarms(std::uint64_t seed, int steps, int runs, const Noise& replayed) {
  int alarms = 0;
  seed += static_cast<std::uint64_t>(held_out());
  Dice dice{RandomKey(seed).derive("quiet")};
  for (int r = 0; r < runs; ++r) {
    const Case one = random_case(dice);
    Noise noise = random_noise(dice);
    if (!replayed.recorded.empty()) noise = replayed;
    SimulatedRun run(one.plan, one.model, one.profile, noise, seed + static_cast<std::uint64_t>(r));
    Detector detector(run.topology());
    std::size_t before = 0;
    for (int step = 0; step < steps / runs; ++step) {
      std::size_t now = 0;
      for (const Finding& finding : detector.observe(run.next())) {
        now += is_structural(finding) ? 0 : 1;
        if (!is_structural(finding) && now > before) printf("false alarm: %s\n", text(finding).c_str());
      }
      alarms += now > before ? 1 : 0;
      before = now;
    }
  }
  return alarms;
}

TEST(Detector, HasNoFalseAlarms) {
  const int steps = is_long_run() ? 200'000 : 10'000;
  EXPECT_LE(false_alarms(3, steps, is_long_run() ? 40 : 10, {}), steps / 10'000);
}

TEST(Detector, HasNoFalseAlarmsUnderRecordedNoise) {
  const int steps = is_long_run() ? 200'000 : 10'000;
  EXPECT_LE(false_alarms(4, steps, is_long_run() ? 40 : 10, replayed_noise()), steps / 10'000);
}

Noise without_spikes() {
  Noise noise;
  noise.spike_chance = 0;
  return noise;
}

// The rings of 32 ranks of a stage all pass through one node. All ranks are slow, and an observation lists
// only 16 of them.
TEST(Detector, FindsLinkThatSlowsMoreRanksThanAreListed) {
  Case one{*find_preset("gpt3-1.3b"), standard_cluster("v100x32"), {}};
  one.profile.groups.front().devices_per_node = one.profile.groups.front().devices_per_domain = 4;
  UniformPlan shape{.pp = 1, .dp = 8, .microbatch = 1, .batch = 512, .sequence_length = 1024};
  shape.strategy.tp = 4;
  one.plan = uniform_plan(one.model, shape);
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    SimulatedRun run(one.plan, one.model, one.profile, {}, seed);
    Detector detector(run.topology());
    for (int step = 0; step < 30; ++step) (void)detector.observe(run.next());
    run.set({{Cause::link, 3, 2}});
    for (int rank = 0; rank < 32; ++rank) ASSERT_GT(run.link_slowdown(rank, Channel::data), 1.3);
    std::vector<Finding> found;
    for (int step = 0; step < 10; ++step) found = detector.observe(run.next());
    const auto is_link = [](const Finding& finding) { return finding.cause == Cause::link; };
    EXPECT_TRUE(std::any_of(found.begin(), found.end(), is_link)) << "seed " << seed;
  }
}

// Three replicas in one pipeline, and a second pipeline with two stages, all-reduce their gradients together.
TEST(Topology, DataChannelSpansPipelines) {
  const ModelSpec model = *find_preset("gpt3-1.3b");
  Plan plan = uniform_plan(model, {.dp = 3, .microbatch = 1, .batch = 12, .sequence_length = 1024});
  Plan other = uniform_plan(model, {.pp = 2, .microbatch = 1, .batch = 4, .sequence_length = 1024});
  for (Stage& stage : other.pipelines.front().stages) stage.devices.front() += 3;
  plan.pipelines.push_back(other.pipelines.front());
  plan.batch += other.batch;
  ASSERT_FALSE(find_problem(plan, model));
  const Cluster cluster(standard_cluster("v100x8"));
  const Topology topology(plan, cluster, DeviceMap::identity(cluster.num_devices()));
  EXPECT_EQ(topology.members(1, Channel::data), (std::vector{0, 1, 2, 3, 4}));
  EXPECT_EQ(topology.members(4, Channel::data), (std::vector{0, 1, 2, 4}));
  EXPECT_EQ(topology.members(3, Channel::next), (std::vector{3, 4}));
}

// On CUDA, instruction times are not available. A GPU that throttles reports a lower clock. A change of all
// clocks is no slow device.
TEST(Detector, FindsSlowDeviceByItsClock) {
  const ModelSpec model = *find_preset("gpt2");
  const Plan plan = uniform_plan(model, {.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024});
  const Cluster cluster(standard_cluster("a100x4"));
  Detector detector(Topology(plan, cluster, DeviceMap::identity(4)));
  auto see = [&, step = 0](double all, double third) mutable {
    Observation seen{.step = ++step};
    for (int rank = 0; rank < 4; ++rank) {
      RankStep rank_step{.rank = rank, .seconds = 0.3};
      rank_step.clock = (1.1 + 0.01 * ((step + rank) % 3)) * all * (rank == 2 ? third : 1);
      seen.add(rank_step);
    }
    return detector.observe(seen);
  };
  for (int i = 0; i < 30; ++i) EXPECT_TRUE(see(1, 1).empty());
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(see(1.3, 1).empty()) << "all clocks are lower, at " << i;
  std::vector<Finding> found;
  int steps = 0;
  for (; steps < 20 && found.empty(); ++steps) found = see(1.3, 1.5);
  EXPECT_LE(steps, 10);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, Cause::device);
  EXPECT_EQ(found[0].locations, std::vector<int>{2});
  EXPECT_NEAR(found[0].factor, 1.5, 0.03);
  EXPECT_NE(text(found[0]).find(" (clock at 0.6"), std::string::npos) << text(found[0]);
  EXPECT_EQ(parse_findings(text(found[0])).at(0).locations, std::vector<int>{2});
  for (int i = 0; i < 15; ++i) found = see(1, 1);
  EXPECT_TRUE(found.empty());
}

// Single slow steps before, and a fast step in between, do not change the first step of the finding.
TEST(Detector, ReportsFirstStepOfCondition) {
  const ModelSpec model = *find_preset("gpt2");
  const Plan plan = uniform_plan(model, {.dp = 4, .microbatch = 1, .batch = 60, .sequence_length = 1024});
  for (const double slower : {1.3, 2.5}) {
    Detector detector(Topology(plan, Cluster(standard_cluster("a100x8")), DeviceMap::identity(8)));
    std::vector<Finding> found;
    for (int step = 1; step <= 80 && found.empty(); ++step) {
      Observation seen{.step = step};
      const bool is_slow = step == 40 || step == 52 || step == 58 || (step >= 61 && step != 64);
      for (int rank = 0; rank < 4; ++rank) {
        RankStep rank_step{.rank = rank, .seconds = 0.3};
        const double noise = 1 + 0.01 * ((step + rank) % 3);
        rank_step.kinds[static_cast<std::size_t>(WorkKind::forward)] = {
            1, 0.2 * (rank == 2 && is_slow ? slower : 1) * noise, 0};
        seen.add(rank_step);
      }
      found = detector.observe(seen);
    }
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].begin_step, 61) << text(found[0]);
  }
}

// Of two devices that become slow at the same time, one has had a fast step since. On its own it would be
// found three steps later.
TEST(Detector, AttributesAllDevicesOfAHostTogether) {
  const ModelSpec model = *find_preset("gpt2");
  const Plan plan = uniform_plan(model, {.dp = 6, .microbatch = 1, .batch = 60, .sequence_length = 1024});
  HardwareProfile machines = standard_cluster("a100x8");
  machines.groups[0].devices_per_node = machines.groups[0].devices_per_domain = 2;
  for (const double slower : {1.3, 2.0}) {
    Detector detector(Topology(plan, Cluster(machines), DeviceMap::identity(8)));
    auto see = [&, step = 0](double second, double third) mutable {
      Observation seen{.step = ++step};
      for (int rank = 0; rank < 6; ++rank) {
        RankStep rank_step{.rank = rank, .seconds = 0.3};
        const double factor = rank == 2 ? second : rank == 3 ? third : 1;
        rank_step.kinds[static_cast<std::size_t>(WorkKind::forward)] = {
            1, 0.2 * factor * (1 + 0.01 * ((step + rank) % 3)), 0};
        seen.add(rank_step);
      }
      return detector.observe(seen);
    };
    for (int i = 0; i < 30; ++i) EXPECT_TRUE(see(1, 1).empty());
    std::vector<Finding> found;
    for (int i = 0; i < 20 && found.empty(); ++i) found = see(slower, i == 3 || i == 5 ? 1.1 : slower);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].cause, Cause::host) << text(found[0]);
    EXPECT_EQ(found[0].locations, std::vector<int>{1});
    EXPECT_NEAR(found[0].factor, slower, 0.03 * slower);
    // If the other device is healthy, only this device is slow.
    for (int i = 0; i < 40; ++i) found = see(slower, 1);
    ASSERT_EQ(found.size(), 1U);
    EXPECT_EQ(found[0].cause, Cause::device) << text(found[0]);
  }
}

// A stage on several nodes becomes slow, and a rank of another stage nearly does. That rank only completes a
// node, so there is no finding for it once the others are attributed to the stage.
TEST(Detector, AttributesRanksToStageBeforeNode) {
  const ModelSpec model = *find_preset("gpt2");
  const Plan plan =
      uniform_plan(model, {.pp = 2, .dp = 3, .microbatch = 1, .batch = 60, .sequence_length = 1024});
  HardwareProfile machines = standard_cluster("a100x8");
  machines.groups[0].devices_per_node = machines.groups[0].devices_per_domain = 2;
  Detector detector(Topology(plan, Cluster(machines), DeviceMap::identity(8)));
  auto see = [&, step = 0](double stage, double other) mutable {
    Observation seen{.step = ++step};
    for (int rank = 0; rank < 6; ++rank) {
      RankStep rank_step{.rank = rank, .group = rank / 3, .seconds = 0.3};
      const double factor = rank < 3 ? stage : rank == 3 ? other : 1;
      rank_step.kinds[static_cast<std::size_t>(WorkKind::forward)] = {
          1, 0.2 * factor * (1 + 0.01 * ((step + rank) % 3)), 0};
      seen.add(rank_step);
    }
    return detector.observe(seen);
  };
  for (int i = 0; i < 30; ++i) (void)see(1, 1);
  bool has_stage = false;
  for (int i = 0; i < 15; ++i)
    for (const Finding& finding : see(2, i % 2 == 0 ? 1.6 : 1.04)) {
      EXPECT_GT(finding.factor, 1);
      has_stage |= finding.cause == Cause::heavy_stage;
    }
  EXPECT_TRUE(has_stage);
}

// The factor is less certain if step times vary more.
TEST(Detector, SpreadOfFactorFollowsNoise) {
  const ModelSpec model = *find_preset("gpt3-1.3b");
  const HardwareProfile machines = standard_cluster("a100x4");
  const Plan plan = uniform_plan(model, {.dp = 4, .microbatch = 1, .batch = 64, .sequence_length = 1024});
  const auto spread_under = [&](double noise) {
    SimulatedRun run(plan, model, machines, Noise{.spread = noise, .spike_chance = 0}, 3);
    Detector detector(Topology(plan, Cluster(machines), DeviceMap::identity(4)));
    std::vector<Finding> found;
    for (int step = 0; step < 100; ++step) {
      if (step == 40) run.set({{Cause::device, 2, 2}});
      found = detector.observe(run.next());
    }
    return found.empty() ? 0 : found.front().spread;
  };
  const double small = spread_under(0.005), large = spread_under(0.05);
  EXPECT_GT(small, 0);
  EXPECT_GT(large, 3 * small);
  EXPECT_LT(large, 0.1);
}

TEST(Detector, IgnoresShortDisturbances) {
  Dice dice{RandomKey(5)};
  for (int i = 0; i < 20; ++i) {
    const Case one = random_case(dice);
    SimulatedRun run(one.plan, one.model, one.profile, without_spikes(), static_cast<std::uint64_t>(i));
    Detector detector(run.topology());
    const Condition condition{Cause::device, dice.below(run.topology().num_ranks()), 3};
    for (int step = 0; step < 80; ++step) {
      run.set(step >= 40 && step < 43 ? std::vector{condition} : std::vector<Condition>{});
      for (const Finding& finding : detector.observe(run.next()))
        EXPECT_EQ(finding.cause, Cause::heavy_stage) << text(finding);
    }
  }
}

TEST(Detector, FindingEndsWithCondition) {
  Dice dice{RandomKey(6)};
  for (int i = 0; i < 20; ++i) {
    const Case one = random_case(dice);
    SimulatedRun run(one.plan, one.model, one.profile, without_spikes(), static_cast<std::uint64_t>(i));
    Detector detector(run.topology());
    const int rank = dice.below(run.topology().num_ranks());
    std::vector<Finding> found;
    for (int step = 0; step < 100; ++step) {
      if (step == 40) run.set({{Cause::device, rank, 2}});
      if (step == 70) run.set({});
      found = detector.observe(run.next());
    }
    for (const Finding& finding : found) EXPECT_LE(finding.begin_step, 1) << text(finding);
  }
}

}  // namespace
}  // namespace optimus
