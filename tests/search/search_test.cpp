#include "search/search.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "base/error.h"
#include "plan/describe.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "plan/validate.h"
#include "search/failures.h"
#include "search/random_demand.h"
#include "search/refine.h"
#include "search/report.h"
#include "search/sizing.h"

#include "search/fitted_plan.h"

namespace optimus {
namespace {

std::string describe(const Problem& problem, const Candidate& c) {
  const HardwareProfile& profile = problem.cluster.profile();
  return fmt::format(
      "{} x{} on {} ({} missing, {} slow, {} GiB), {} {}, batch {} seq {} goal {}: pp{} tp{} cp{} dp{} ep{} "
      "mb{} "
      "zero{} group{} "
      "sp{} {} chunks{} {} fitted{}",
      problem.model.name, problem.model.layers, problem.cluster.name(), profile.missing_devices.size(),
      profile.speed_factors.size(), profile.types.front().memory.value >> 30, problem.software->name,
      text(problem.precision), problem.batch, problem.sequence_length, static_cast<int>(problem.goal), c.pp,
      c.tp, c.cp, c.dp, c.ep, c.microbatch, c.zero, c.shard_group, c.sequence_parallel, text(c.schedule),
      c.chunks, text(c.recompute), c.is_fitted);
}

// The best candidate of the whole space, by exhaustive enumeration.
struct BruteForceResult {
  double least = 1e300;
  Candidate best;
};
BruteForceResult brute_force(const Problem& problem) {
  const Demand demand = problem.demand();
  BoundModel bound_model(demand, *problem.cluster_view);
  BruteForceResult brute;
  for (const Candidate& c : all_candidates(demand, *problem.cluster_view)) {
    if (find_problem(grid_plan(demand, bound_model, c), problem.model)) continue;
    const auto [candidate, plan, peak_memory] =
        fit_memory_margin(demand, *problem.cluster_view, bound_model, c);
    if (find_problem(plan, problem.model) || !peak_memory.fits()) continue;
    const double weight = objective_weight(demand, problem.cluster_view->map(), plan);
    const double objective = seconds_of(demand, *problem.cluster_view, plan) * weight;
    if (objective < brute.least) brute = {objective, c};
  }
  return brute;
}

TEST(Search, MatchesBruteForce) {
  const int times = is_long() ? 30 : 1;
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < times; ++i) {
      const auto problem = random_problem(5, 4);
      const Demand demand = problem->demand();
      BoundModel bound_model(demand, *problem->cluster_view);
      const GridResult grid =
          search_grid(demand, *problem->cluster_view, bound_model, {.max_simulations = 1 << 20});
      const BruteForceResult brute = brute_force(*problem);
      RC_ASSERT(grid.evaluated.empty() == (brute.least >= 1e300));
      if (grid.evaluated.empty()) continue;
      // Sums in another order differ in their last bits.
      if (std::abs(grid.evaluated.front().objective / brute.least - 1) > 1e-12) {
        const Bound bound = bound_model.bound(brute.best), any = bound_model.bound_any_schedule(brute.best);
        RC_FAIL(fmt::format("search {} {}\nbrute {} {} bound {} {} of {} shape {} {} split {}",
                            grid.evaluated.front().objective,
                            describe(*problem, grid.evaluated.front().candidate), brute.least,
                            describe(*problem, brute.best), bound.seconds, bound.bytes, bound.limit,
                            any.seconds, any.bytes, bound_model.bound_any_shape(brute.best)));
      }
      RC_ASSERT(grid.gap == 0.0);
    }
  }));
}

// Every returned plan is valid, fits, and is no worse than the best grid candidate.
TEST(Search, ReturnsValidPlansThatFit) {
  EXPECT_TRUE(rc::check([] {
    const auto problem = random_problem(24, 8);
    const Demand demand = problem->demand();
    try {
      const SearchResult result = search(demand, *problem->cluster_view);
      RC_ASSERT(find_problem(result.plan, problem->model) == std::nullopt);
      RC_ASSERT(peak_memory_of(demand, *problem->cluster_view, result.plan).fits());
      RC_ASSERT(num_devices(result.plan) <= problem->cluster_view->num_devices());
      if (demand.goal == Goal::throughput && demand.failures.mtbf.value == 0)
        RC_ASSERT(result.step.seconds <= result.grid_seconds * (1 + 1e-9));
      RC_ASSERT(parse_plan(plan_text(result.plan), "plan") == result.plan);
    } catch (const UserError& error) {
      RC_ASSERT(std::string(error.what()).find("memory") != std::string::npos);
    }
  }));
}

// A random plan of any kind: uneven stages, different strategies.
Plan random_plan_of(const Problem& problem, int stages, int width, int microbatch) {
  Plan plan;
  plan.model = problem.model.name, plan.num_blocks = num_blocks(problem.model);
  plan.batch = problem.batch, plan.sequence_length = problem.sequence_length;
  plan.schedule = pick_of({Schedule::one_f_one_b, Schedule::zero_bubble, Schedule::gpipe});
  Pipeline pipeline;
  std::vector<int> cuts = {0, plan.num_blocks};
  while (std::ssize(cuts) < stages + 1)
    if (const int at = pick(1, plan.num_blocks - 1); std::find(cuts.begin(), cuts.end(), at) == cuts.end())
      cuts.push_back(at);
  std::sort(cuts.begin(), cuts.end());
  LayerStrategy strategy;
  const auto is_split = [&](int tp, int cp) { return width % (tp * cp) == 0; };
  do strategy.tp = 1 << pick(0, 3), strategy.cp = 1 << pick(0, 2);
  while (!is_split(strategy.tp, strategy.cp));
  strategy.sequence_parallel = strategy.tp > 1 && pick(0, 2) > 0;
  strategy.zero = pick(0, 3);
  strategy.recompute = pick_of({RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full});
  for (int s = 0; s < stages; ++s) {
    Stage stage;
    for (int i = 0; i < width; ++i) stage.devices.push_back(s * width + i);
    const int first = cuts[static_cast<std::size_t>(s)];
    stage.chunks.push_back({{{first, cuts[static_cast<std::size_t>(s) + 1] - first, strategy}}});
    pipeline.stages.push_back(stage);
  }
  const int sequences = width / (strategy.tp * strategy.cp) * microbatch;
  for (std::int64_t left = plan.batch; left > 0; left -= sequences)
    pipeline.microbatches.push_back(static_cast<int>(std::min<std::int64_t>(left, sequences)));
  plan.pipelines.push_back(std::move(pipeline));
  return plan;
}

TEST(Search, IsNotBeatenByRandomPlans) {
  const auto problem = make("llama3-8b", "h100x64", 128, 4096);
  const Demand demand = problem->demand();
  const double ours = search(demand, *problem->cluster_view).step.seconds;
  const int plans = is_long() ? 10'000 : 200;
  double best = 1e300;
  EXPECT_TRUE(rc::check([&] {
    for (int i = 0; i < plans / 100; ++i) {
      const int stages = 1 << pick(0, 4), width = 64 / stages;
      const Plan plan = random_plan_of(*problem, stages, width, 1 << pick(0, 2));
      if (find_problem(plan, problem->model) || !peak_memory_of(demand, *problem->cluster_view, plan).fits())
        continue;
      best = std::min(best, seconds_of(demand, *problem->cluster_view, plan));
    }
  }));
  EXPECT_LE(ours, 1.01 * best);
}

// Random small changes to the returned plan never improve it by more than one percent.
TEST(Search, IsNotBeatenByItsNeighbours) {
  const auto problem = make("gpt3-13b", "a100x32", 64, 2048);
  const Demand demand = problem->demand();
  const SearchResult result = search(demand, *problem->cluster_view);
  double best = result.step.seconds;
  EXPECT_TRUE(rc::check([&] {
    Plan plan = result.plan;
    for (int change = 0; change < pick(1, 3); ++change)
      for (Pipeline& pipeline : plan.pipelines) {
        const int s = pick(0, static_cast<int>(pipeline.stages.size()) - 1);
        for (Chunk& chunk : pipeline.stages[static_cast<std::size_t>(s)].chunks)
          for (BlockRun& run : chunk.runs) {
            if (pick(0, 1))
              run.strategy.recompute =
                  pick_of({RecomputeMode::none, RecomputeMode::selective, RecomputeMode::full});
            if (pick(0, 2) == 0) run.strategy.zero = pick(0, 3);
            if (run.strategy.zero == 0) run.strategy.shard_group = 0;
            if (pick(0, 3) == 0 && run.strategy.tp > 1)
              run.strategy.sequence_parallel = !run.strategy.sequence_parallel;
          }
        if (s + 1 < std::ssize(pipeline.stages) && pick(0, 1) && plan.schedule != Schedule::interleaved) {
          BlockRun& here = pipeline.stages[static_cast<std::size_t>(s)].chunks.back().runs.back();
          BlockRun& next = pipeline.stages[static_cast<std::size_t>(s) + 1].chunks.front().runs.front();
          if (here.count > 1) --here.count, --next.first_block, ++next.count;
        }
      }
    if (find_problem(plan, problem->model) || !peak_memory_of(demand, *problem->cluster_view, plan).fits())
      return;
    best = std::min(best, seconds_of(demand, *problem->cluster_view, plan));
  }));
  EXPECT_LE(result.step.seconds, 1.01 * best);
}

TEST(Search, RespectsConstraints) {
  const auto problem = make("llama3-8b", "h100x32", 64, 4096);
  problem->constraints.tp = Range{4, 4}, problem->constraints.pp = Range{2, 4},
  problem->constraints.zero = Range{1, 1};
  problem->constraints.schedule = "1f1b", problem->constraints.microbatch = Range{2, 2};
  problem->constraints.recompute = "full";
  const SearchResult result = search(problem->demand(), *problem->cluster_view);
  for (const Stage& stage : result.plan.pipelines.front().stages)
    for (const BlockRun& run : stage.chunks.front().runs) {
      EXPECT_EQ(run.strategy.tp, 4);
      EXPECT_EQ(run.strategy.zero, 1);
      EXPECT_EQ(run.strategy.recompute, RecomputeMode::full);
    }
  const std::size_t pp = result.plan.pipelines.front().stages.size();
  EXPECT_TRUE(pp >= 2 && pp <= 4) << pp;
  EXPECT_EQ(result.plan.schedule, Schedule::one_f_one_b);
  problem->constraints.max_memory = Bytes(std::int64_t{4} << 30);
  EXPECT_THROW(search(problem->demand(), *problem->cluster_view), UserError);
}

std::string error_message(const Problem& problem) {
  const auto found = find_plan(problem.demand(), *problem.cluster_view);
  return found ? "" : found.error().why;
}

TEST(Search, ExplainsWhyNothingFits) {
  const auto large = make("llama3-405b", "h100x8", 8, 8192);
  EXPECT_NE(error_message(*large).find("memory"), std::string::npos);
  EXPECT_NE(error_message(*large).find("devices ("), std::string::npos) << error_message(*large);
  const auto wide = make("llama3-8b", "h100x8", 8, 8192);
  wide->constraints.tp = Range{16, 16};
  EXPECT_EQ(error_message(*wide), "tp 16 needs 16 devices, but h100x8 has 8; add devices or lower the sizes");
  const auto kept = make("gpt3-13b", "a100-40x16", 64, 2048);
  kept->constraints.tp = Range{1, 1}, kept->constraints.pp = Range{1, 1};
  kept->constraints.recompute = "none", kept->constraints.microbatch = Range{8, 8},
  kept->constraints.zero = Range{0, 0};
  EXPECT_NE(error_message(*kept).find("; try "), std::string::npos) << error_message(*kept);
  const auto longer = make("gpt2", "h100x8", 8, 4096);
  EXPECT_NE(error_message(*longer).find("1024"), std::string::npos);
  const auto uneven = make("mixtral-8x7b", "h100x64", 256, 4096);
  uneven->constraints.ep = Range{3, 3};
  EXPECT_EQ(error_message(*uneven),
            "--ep: expected a divisor of the 8 experts of mixtral-8x7b, got 3; use one of 1, 2, 4, 8");
  const auto dense = make("llama3-8b", "h100x64", 256, 4096);
  dense->constraints.ep = Range{2, 4};
  EXPECT_NE(error_message(*dense).find("has no experts"), std::string::npos) << error_message(*dense);
}

// Expert parallelism is used where the experts would not fit otherwise, and constraints on it are respected.
TEST(Search, UsesExpertParallelism) {
  for (const char* name : {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3"}) {
    const auto problem = make(name, std::string("h100x") + (name[0] == 'd' ? "512" : "64"), 256, 4096);
    const SearchResult result = search(problem->demand(), *problem->cluster_view);
    EXPECT_EQ(find_problem(result.plan, problem->model), std::nullopt);
    EXPECT_TRUE(peak_memory_of(problem->demand(), *problem->cluster_view, result.plan).fits());
    EXPECT_EQ(result.gap, 0) << name;
    problem->constraints.ep = Range{4, 4};
    const SearchResult four = search(problem->demand(), *problem->cluster_view);
    EXPECT_NE(short_text(four.plan).find("ep4"), std::string::npos) << short_text(four.plan);
    EXPECT_GE(four.step.seconds, result.step.seconds * (1 - 1e-9));
  }
}

std::set<int> zero_stages(const Plan& plan) {
  std::set<int> stages;
  for (const Stage& stage : plan.pipelines.front().stages)
    for (const Chunk& chunk : stage.chunks)
      for (const BlockRun& run : chunk.runs) stages.insert(run.strategy.zero);
  return stages;
}

// Beyond the grid: chunks of different length if the ends of the model cost as much as layers.
TEST(Search, SplitsChunksUnevenly) {
  const auto problem = make("llama3-8b", "h100x32", 64, 4096);
  problem->constraints.pp = Range{4, 4}, problem->constraints.schedule = "interleaved";
  const SearchResult result = search(problem->demand(), *problem->cluster_view);
  EXPECT_LT(result.step.seconds, result.grid_seconds * (1 - 1e-3));
  const std::vector<Stage>& stages = result.plan.pipelines.front().stages;
  const auto layers = [](const Chunk& chunk) { return chunk.end_block() - chunk.first_block(); };
  EXPECT_LT(layers(stages.back().chunks.back()) - 1, layers(stages[1].chunks.front()));
}

// Parameters are sharded only in as many layers as memory requires, and constraints are respected.
TEST(Search, ShardsOnlyAsMemoryRequires) {
  const auto problem = make("gpt3-13b", "a100x4", 32, 2048);
  problem->constraints.recompute = "full";
  const SearchResult result = search(problem->demand(), *problem->cluster_view);
  EXPECT_LT(result.step.seconds, result.grid_seconds * (1 - 1e-4));
  EXPECT_EQ(zero_stages(result.plan), (std::set<int>{2, 3}));
  problem->constraints.zero = Range{3, 3};
  EXPECT_EQ(zero_stages(search(problem->demand(), *problem->cluster_view).plan), std::set<int>{3});
}

// If memory is below the needs of every grid plan, groups of layers with one saved input still fit.
TEST(Search, RecomputesGroupsOfLayersWhereNothingElseFits) {
  const auto problem = make("llama3-70b", "h100x64", 64, 8192);
  Constraints& constraints = problem->constraints;
  constraints.tp = constraints.pp = constraints.cp = constraints.microbatch = Range{1, 1};
  constraints.recompute = "full", constraints.zero = Range{3, 3};
  const Demand demand = problem->demand();
  BoundModel bound_model(demand, *problem->cluster_view);
  double least = 1e300;
  for (const Candidate& c : all_candidates(demand, *problem->cluster_view))
    least = std::min(least,
                     peak_memory_of(demand, *problem->cluster_view, grid_plan(demand, bound_model, c)).bytes);
  constraints.max_memory = Bytes(static_cast<std::int64_t>(least) - (512 << 20));
  const SearchResult result = search(problem->demand(), *problem->cluster_view);
  EXPECT_TRUE(peak_memory_of(problem->demand(), *problem->cluster_view, result.plan).fits());
  const BlockRun& run = result.plan.pipelines.front().stages.front().chunks.front().runs.front();
  EXPECT_GT(run.strategy.recompute_layers, 1);
  EXPECT_TRUE(std::isinf(result.gap));
}

// Offloaded state must fit into the host memory of the node.
TEST(Search, ChecksHostMemory) {
  HardwareProfile profile = standard_cluster("a100x8");
  profile.types.front().memory = Bytes(std::int64_t{20} << 30);
  const auto large = placed(make_problem("gpt3-13b", profile, 16, 2048));
  large->constraints.offload = true;
  const SearchResult result = search(large->demand(), *large->cluster_view);
  const PeakMemory peak_memory = peak_memory_of(large->demand(), *large->cluster_view, result.plan);
  EXPECT_GT(peak_memory.host_bytes, 0);
  profile.groups.front().host_memory = Bytes(static_cast<std::int64_t>(peak_memory.host_bytes / 4));
  const auto small = placed(make_problem("gpt3-13b", profile, 16, 2048));
  small->constraints.offload = true;
  EXPECT_NE(error_message(*small), "");
}

TEST(Search, ExplainsAlternatives) {
  const auto problem = make("llama3-70b", "h100x64", 128, 8192);
  const Demand demand = problem->demand();
  const SearchResult result = search(demand, *problem->cluster_view);
  EXPECT_GE(result.alternatives.size(), 3u);
  for (const Alternative& other : result.alternatives) {
    EXPECT_FALSE(other.why.empty());
    if (other.peak_memory.fits()) {
      EXPECT_GE(other.seconds, result.step.seconds * (1 - 1e-9));
    }
  }
  for (std::size_t i = 1; i < result.front.size(); ++i) {
    EXPECT_GE(result.front[i].seconds, result.front[i - 1].seconds);
    EXPECT_LT(result.front[i].bytes, result.front[i - 1].bytes);
  }
  const OrderedJson json = search_json(demand, *problem->cluster_view, result);
  EXPECT_EQ(json["predicted"]["step_seconds"], result.step.seconds);
  EXPECT_EQ(json["alternatives"].size(), result.alternatives.size());
  EXPECT_NE(search_text(demand, *problem->cluster_view, result).find("why worse"), std::string::npos);
  const std::string svg = search_svg(demand, *problem->cluster_view, result);
  EXPECT_EQ(svg.rfind("<svg", 0), 0u);
  EXPECT_EQ(svg.find("href"), std::string::npos);
}

// Sharded state without a second copy is lost with a device. The copy costs memory, messages and updates.
TEST(Search, WeighsASecondCopyAgainstFailures) {
  const auto problem = make("llama3-8b", "h100x32", 64, 4096);
  problem->constraints.zero = Range{3, 3}, problem->constraints.dp = Range{32, 32};
  const auto planned = [&](Seconds mtbf) {
    problem->failures.mtbf = mtbf;
    return search(problem->demand(), *problem->cluster_view, {.is_uniform = true});
  };
  const SearchResult never = planned(Seconds(0)), rarely = planned(Seconds(3e11)),
                     often = planned(Seconds(3e6));
  EXPECT_EQ(never.plan.copy_distance, 0);
  EXPECT_EQ(rarely.plan.copy_distance, 0);
  EXPECT_EQ(smallest_owner_set(never.plan).size(), 1u);
  EXPECT_EQ(often.plan.copy_distance, 8) << "the copy is on another node";
  EXPECT_EQ(smallest_owner_set(often.plan).size(), 2u);
  EXPECT_GT(often.step.seconds, never.step.seconds);
  EXPECT_GT(often.peak_memory.bytes, never.peak_memory.bytes);
  const Demand demand = problem->demand();
  EXPECT_NE(
      search_text(demand, *problem->cluster_view, often).find("the other devices have copies of all state"),
      std::string::npos);
  const auto without = std::find_if(often.alternatives.begin(), often.alternatives.end(),
                                    [](const Alternative& other) { return other.plan.copy_distance == 0; });
  ASSERT_NE(without, often.alternatives.end());
  EXPECT_NE(without->why.find("losing a device loses state"), std::string::npos) << without->why;
  // Replicas of the model are copies of its state.
  problem->constraints.zero = Range{0, 0}, problem->constraints.dp = Range{4, 4};
  EXPECT_EQ(planned(Seconds(3e6)).plan.copy_distance, 0);
}

TEST(Search, UsesOddNumbersOfDevices) {
  for (const char* cluster : {"h100x7", "h100x31", "a100x13", "h100x509"}) {
    const auto problem = make("llama3-8b", cluster, 256, 4096);
    const SearchResult result = search(problem->demand(), *problem->cluster_view);
    EXPECT_GE(num_devices(result.plan), problem->cluster_view->num_devices() * 9 / 10) << cluster;
  }
}

TEST(Search, AssignsMoreWorkToFasterDevices) {
  const auto problem = make("llama3-8b", "h100x8+a100x8", 64, 4096);
  const Demand demand = problem->demand();
  const SearchResult result = search(demand, *problem->cluster_view);
  // Compared with the eight faster devices alone.
  const auto alone = make("llama3-8b", "h100x8", 64, 4096);
  EXPECT_LT(result.step.seconds, search(alone->demand(), *alone->cluster_view).step.seconds);
}

TEST(Search, CostGoalUsesFewerDevices) {
  const auto problem = make("gpt3-1.3b", "h100x64", 64, 2048);
  const SearchResult fastest = search(problem->demand(), *problem->cluster_view);
  problem->goal = Goal::cost;
  const SearchResult inexpensive = search(problem->demand(), *problem->cluster_view);
  EXPECT_LE(inexpensive.step.seconds * num_devices(inexpensive.plan),
            fastest.step.seconds * num_devices(fastest.plan) * (1 + 1e-9));
  EXPECT_LE(num_devices(inexpensive.plan), num_devices(fastest.plan));
}

TEST(Search, FindsClusterSize) {
  const auto problem = make("llama3-8b", "h100x8", 64, 8192);
  const Demand demand = problem->demand();
  const Sizing sizing = devices_to_finish(demand, 2.0);
  ASSERT_GT(sizing.num_devices, 0);
  EXPECT_LE(sizing.seconds, 2.0);
  EXPECT_EQ(devices_to_finish(demand, 1e-6).num_devices, 0);
}

}  // namespace
}  // namespace optimus
