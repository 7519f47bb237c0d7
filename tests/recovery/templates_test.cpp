#include "recovery/templates.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <numeric>

#include "base/error.h"
#include "plan/validate.h"
#include "recovery/takeover.h"
#include "search/evaluate.h"
#include "search/random_demand.h"
#include "search/sizing.h"

namespace optimus {
namespace {

struct PlanUsage {
  int devices = 0;
  std::int64_t sequences = 0;
  int fewest_sequences = 1 << 30;  // of a pipeline's replica, rounded up
};

PlanUsage used_by(const Plan& plan) {
  PlanUsage used;
  used.devices = num_devices(plan);
  for (const Pipeline& pipeline : plan.pipelines) {
    const int own = std::accumulate(pipeline.microbatches.begin(), pipeline.microbatches.end(), 0);
    used.sequences += own;
    const Stage& stage = pipeline.stages.front();
    const int replicas = data_parallel(stage, stage.chunks.front().runs.front().strategy);
    used.fewest_sequences = std::min(used.fewest_sequences, (own + replicas - 1) / replicas);
  }
  return used;
}

// A small model on the CPU workers of one machine, as in a local run.
std::unique_ptr<Problem> small_run(int layers, std::int64_t batch) {
  auto problem = make("gpt2", "cpux8", batch, 64);
  problem->model.layers = layers, problem->model.hidden = 64, problem->model.heads = 4;
  problem->model.kv_heads = 4, problem->model.head_dim = 16, problem->model.ffn = 256;
  problem->model.vocab = 257, problem->precision = Precision::fp32;
  return problem;
}

TEST(Templates, RejectsTooLongSequences) {
  const auto problem = make("gpt2", "v100x8", 64, 2048);
  EXPECT_THROW((void)PipelineTemplates::build(problem->demand(), {.devices_per_node = 1, .max_nodes = 8}),
               UserError);
}

TEST(Templates, UsesEveryWorkerOfSmallRun) {
  for (const int layers : {1, 2, 5})
    for (const std::int64_t batch : {1, 3, 8, 13}) {
      const auto problem = small_run(layers, batch);
      const PipelineTemplates templates = PipelineTemplates::build(problem->demand(), {.max_nodes = 8});
      EXPECT_EQ(templates.smallest(), 1);
      for (int workers = 1; workers <= 8; ++workers) {
        const Plan plan = templates.plan_for(workers);
        EXPECT_EQ(find_problem(plan, problem->model), std::nullopt);
        const PlanUsage used = used_by(plan);
        EXPECT_EQ(used.sequences, batch);
        EXPECT_GE(used.fewest_sequences, 1);
        // With fewer sequences than workers some workers may be idle: seven cannot share five layers and four
        // heads of one sequence.
        if (batch >= workers) {
          EXPECT_EQ(used.devices, workers) << layers << " layers, batch " << batch;
        }
        EXPECT_GE(used.devices, std::min<std::int64_t>(workers, batch));
        EXPECT_EQ(used.devices, templates.num_used_nodes(workers));
        if (batch > 1 && workers > 1) {
          EXPECT_GE(templates.num_tolerated_losses(workers), 1);
        }
        EXPECT_GT(templates.seconds(workers), 0);
      }
    }
}

// Every number of nodes from (f + 1) x smallest on is covered by at least f + 1 pipelines without idle nodes.
TEST(Templates, CoversAnyNumberOfSurvivors) {
  for (const auto& [model, memory, failures] :
       {std::tuple{"llama3-8b", 40, 1}, std::tuple{"gpt3-1.3b", 16, 2}, std::tuple{"llama3.2-1b", 16, 0}}) {
    HardwareProfile profile = standard_cluster("a100x8");
    profile.types.front().memory = Bytes(static_cast<std::int64_t>(memory) << 30);
    const auto problem = placed(make_problem(model, profile, 64, 1024));
    const TemplateOptions options{.devices_per_node = 1, .max_nodes = 24, .failures = failures};
    const PipelineTemplates templates = PipelineTemplates::build(problem->demand(), options);
    EXPECT_GE(templates.smallest(), 1);
    for (int nodes = templates.smallest(); nodes <= options.max_nodes; ++nodes) {
      const Plan plan = templates.plan_for(nodes);
      EXPECT_EQ(find_problem(plan, problem->model), std::nullopt) << nodes;
      EXPECT_EQ(used_by(plan).sequences, 64);
      EXPECT_EQ(num_devices(plan), nodes) << model;
      if (nodes >= (failures + 1) * templates.smallest()) {
        EXPECT_GE(templates.num_tolerated_losses(nodes), failures);
      }
      const Cluster cluster = with_devices(problem->cluster, nodes);
      const ClusterView cluster_view(cluster);
      Demand demand{problem->model, cluster, optimus_software(), fitted_constants()};
      demand.batch = 64, demand.sequence_length = 1024;
      EXPECT_TRUE(peak_memory_of(demand, cluster_view, plan).fits()) << model << " on " << nodes;
    }
    EXPECT_THROW(templates.plan_for(templates.smallest() - 1), UserError);
    EXPECT_EQ(templates.plan_for(1000), templates.plan_for(options.max_nodes));
  }
}

// The proof of docs/understand/recovery.md in numbers: balanced sizes lie between the smallest size and twice
// that minus one.
TEST(Templates, BalancedSizesAreTemplates) {
  for (int smallest = 1; smallest <= 40; ++smallest)
    for (int nodes = smallest; nodes <= 500; ++nodes) {
      const int pipelines = nodes / smallest, small = nodes / pipelines;
      const int large = small + (nodes % pipelines > 0);
      ASSERT_GE(small, smallest);
      ASSERT_LE(large, 2 * smallest - 1);
      ASSERT_EQ(small * pipelines + nodes % pipelines, nodes);
    }
}

TEST(Templates, PlanForTakesMicroseconds) {
  const auto problem = small_run(5, 64);
  const PipelineTemplates templates = PipelineTemplates::build(problem->demand(), {.max_nodes = 8});
  const auto begin = std::chrono::steady_clock::now();
  constexpr int kTimes = 200;
  int devices = 0;
  for (int i = 0; i < kTimes; ++i) devices += num_devices(templates.plan_for(1 + i % 8));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(devices, kTimes);
  EXPECT_LT(took.count() / kTimes, 1e-3);  // takes tens of microseconds; the margin is for busy machines
}

TEST(Templates, KeepsMultiDeviceNodesWhole) {
  const auto problem = make("gpt3-1.3b", "v100x32", 64, 1024);
  const PipelineTemplates templates =
      PipelineTemplates::build(problem->demand(), {.devices_per_node = 8, .max_nodes = 4, .failures = 1});
  for (int nodes = templates.smallest(); nodes <= 4; ++nodes) {
    const Plan plan = templates.plan_for(nodes);
    EXPECT_EQ(find_problem(plan, problem->model), std::nullopt);
    EXPECT_EQ(num_devices(plan), nodes * 8);
  }
}

TEST(Templates, ThrowsIfModelDoesNotFit) {
  const auto problem = make("llama3-70b", "v100x4", 8, 1024);
  EXPECT_THROW(PipelineTemplates::build(problem->demand(), {.max_nodes = 2}), UserError);
}

// Compares a takeover, the first response to a loss, with the template's plan.
TEST(Templates, AreFasterThanTakeover) {
  const auto problem = make("gpt3-1.3b", "a100x6", 48, 1024);
  const Demand demand = problem->demand();
  const PipelineTemplates templates = PipelineTemplates::build(demand, {.max_nodes = 6});
  const Plan plan = templates.plan_for(6);
  const std::optional<Plan> left = without_device(plan, 3);
  ASSERT_TRUE(left);
  EXPECT_EQ(find_problem(*left, problem->model), std::nullopt);
  const double whole = seconds_of(demand, *problem->cluster_view, plan),
               taken_over = seconds_of(demand, *problem->cluster_view, *left),
               replanned = templates.seconds(5);
  EXPECT_GT(taken_over, whole);
  EXPECT_GE(taken_over, 0.999 * replanned);
}

}  // namespace
}  // namespace optimus
