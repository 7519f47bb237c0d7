// Layouts of plans: every element has the right number of owners, with the right sizes.
#include "plan/layouts.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "layout/sync.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

TEST(Layouts, EveryPipelineOwnsEveryElement) {
  EXPECT_TRUE(rc::check([] {
    Plan plan =
        random_plan::plan_for(random_small_model(), {.most_stages = 3, .most_width = 4, .most_pipelines = 2});
    const bool is_mixture = random_plan::pick(0, 2) == 0, is_tied = *rc::gen::arbitrary<bool>();
    const ModelSpec model = is_mixture ? small_mixture(plan.num_blocks - 2, is_tied, true)
                                       : small_model(plan.num_blocks - 2, is_tied);
    if (is_mixture) random_plan::deal_experts(plan);
    const auto kind = *rc::gen::element(StateKind::weights, StateKind::gradients, StateKind::optimizer);
    const Layout layout = layout_of(plan, model, kind);
    validate(layout);
    for (std::size_t t = 0; t < layout.tensors.size(); ++t) {
      const TensorInfo& tensor = layout.tensors[t];
      for (const Placement& placement : layout.placements[t]) {
        // Count the owners of each element in one replica: one, or more for shared key/value heads.
        const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(placement.grid)];
        RC_ASSERT(std::ssize(grid.ranks) == grid.size());
        std::int64_t held = 0;
        for (int shard = 0; shard < grid.num_shards; ++shard)
          for (int part = 0; part < grid.num_parts; ++part)
            held += box_of_shard(tensor, placement, grid, shard, part).num_elements();
        const std::int64_t whole = tensor.shape.num_elements();
        if (placement.split_dim < 0)
          RC_ASSERT(held == whole * grid.num_parts);
        else if (tensor.name.find(".k.") == std::string::npos && tensor.name.find(".v.") == std::string::npos)
          RC_ASSERT(held == whole);
        else
          RC_ASSERT(held >= whole);
      }
    }
  }));
}

TEST(Layouts, KeyValueHeadsFollowQueryHeads) {
  const ModelSpec model = small_model(1, true);  // 6 heads, 2 key/value heads of width 4
  EXPECT_EQ(tensor_parts(model, SplitUnit::heads, 4),
            (std::vector<Span>{{0, 8}, {8, 16}, {16, 20}, {20, 24}}));
  EXPECT_EQ(tensor_parts(model, SplitUnit::kv_heads, 4), (std::vector<Span>{{0, 4}, {0, 8}, {4, 8}, {4, 8}}));
  EXPECT_EQ(tensor_parts(model, SplitUnit::kv_heads, 2), (std::vector<Span>{{0, 4}, {4, 8}}));
  EXPECT_EQ(tensor_parts(model, SplitUnit::vocab, 3), (std::vector<Span>{{0, 13}, {13, 25}, {25, 37}}));
}

TEST(Layouts, TiedEmbeddingIsOnFirstAndLastStage) {
  const ModelSpec model = small_model(4, true);
  const Plan plan = uniform_plan(model, {.pp = 2, .batch = 2, .sequence_length = 8});
  const Layout layout = layout_of(plan, model, StateKind::weights);
  EXPECT_EQ(layout.placements[0].size(), 2u);
  EXPECT_EQ(layout.placements[1].size(), 1u);
}

TEST(Layouts, ZeroMemoryMatchesPaper) {
  // bf16 weights, fp32 accumulators, master weights and moments: 18 bytes per parameter -> 6 + 12/N, 2 +
  // 16/N, 18/N.
  ModelSpec model = small_model(2, false);
  const std::int64_t parameters = num_parameters(model);
  const int n = 4;
  const double expected[] = {18.0, 6 + 12.0 / n, 2 + 16.0 / n, 18.0 / n};
  for (int zero = 0; zero <= 3; ++zero) {
    const Plan plan =
        uniform_plan(model, {.dp = n, .strategy = {.zero = zero}, .batch = 8, .sequence_length = 8});
    std::int64_t bytes = 0;
    for (const StateKind kind : {StateKind::weights, StateKind::gradients, StateKind::optimizer}) {
      const Layout layout = layout_of(plan, model, kind);
      const RankIndex index(layout);
      for (int rank = 0; rank < n; ++rank) bytes += bytes_of(layout, index, Rank{rank}).value;
    }
    // Summed over all ranks there is no padding, so the formula is exact.
    EXPECT_DOUBLE_EQ(static_cast<double>(bytes) / n / static_cast<double>(parameters), expected[zero])
        << "zero " << zero;
  }
}

// Shard s of four is also on the device of shard s + 1.
TEST(Layouts, ShardCopiesAreOnAnotherDevice) {
  const ModelSpec model = small_model(1, false);
  Plan plan = uniform_plan(model, {.dp = 4, .strategy = {.zero = 1}, .batch = 4, .sequence_length = 8});
  plan.copy_distance = 1;
  ASSERT_EQ(find_problem(plan, model), std::nullopt);
  const Layout layout = layout_with_copies(plan, model, StateKind::optimizer);
  validate(layout);
  const std::vector<TensorBox> boxes = boxes_of(layout, RankIndex(layout), Rank{0});
  ASSERT_GE(boxes.size(), 2u);  // 37 rows, ten per shard
  EXPECT_EQ(boxes[0].box[0], (Span{0, 10}));
  EXPECT_EQ(boxes[1].box[0], (Span{30, 37}));
  EXPECT_EQ(smallest_owner_set(plan), (std::vector<int>{0, 1}));
  plan.copy_distance = 2;
  EXPECT_EQ(smallest_owner_set(plan), (std::vector<int>{0, 2}));
  plan.copy_distance = 0;
  EXPECT_EQ(layout_with_copies(plan, model, StateKind::optimizer),
            layout_of(plan, model, StateKind::optimizer));
  EXPECT_EQ(smallest_owner_set(plan), std::vector<int>{0});
}

// Computed from the layout only, independently of the plan: the owners of each element.
TEST(Layouts, SmallestOwnerSetMatchesLayout) {
  EXPECT_TRUE(rc::check([] {
    Plan plan =
        random_plan::plan_for(random_small_model(), {.most_stages = 3, .most_width = 4, .most_pipelines = 2});
    const bool is_tied = *rc::gen::arbitrary<bool>() && !is_asynchronous(plan.schedule);
    const ModelSpec model = small_model(plan.num_blocks - 2, is_tied);
    if (random_plan::pick(0, 1) == 1 && !is_asynchronous(plan.schedule))
      random_plan::enable_shard_copies(plan, random_plan::pick(1, 5));
    RC_PRE(!find_problem(plan, model));
    const SyncPlan holders = sync(layout_with_copies(plan, model, StateKind::optimizer));
    std::size_t fewest = holders.groups.front().size();
    for (const Reduction& reduction : holders.reductions)
      fewest = std::min(fewest, holders.groups[static_cast<std::size_t>(reduction.group)].size());
    const std::vector<int> found = smallest_owner_set(plan);
    // A tied embedding may be on more devices than its blocks, but never on fewer.
    RC_ASSERT((is_tied ? found.size() <= fewest : found.size() == fewest));
    std::vector<Rank> ranks;
    for (const int device : found) ranks.push_back(Rank{device});
    std::sort(ranks.begin(), ranks.end());
    if (!is_tied)
      RC_ASSERT(std::find(holders.groups.begin(), holders.groups.end(), ranks) != holders.groups.end());
  }));
}

TEST(Layouts, ExpertsAreDistributedAndSharded) {
  const ModelSpec model = small_mixture(1, false, true);
  UniformPlan shape{.dp = 4, .batch = 8, .sequence_length = 8};
  shape.strategy.tp = 2, shape.strategy.sequence_parallel = true, shape.strategy.ep = 4,
  shape.strategy.zero = 1;
  const Plan plan = uniform_plan(model, shape);
  const auto held = [&](StateKind kind, int rank, const std::string& name) {
    const Layout layout = layout_of(plan, model, kind);
    std::int64_t elements = 0;
    for (std::size_t t = 0; t < layout.tensors.size(); ++t)
      if (layout.tensors[t].name == name)
        for (const Placement& placement : layout.placements[t]) {
          const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(placement.grid)];
          for (int i = 0; i < std::ssize(grid.ranks); ++i)
            if (grid.ranks[static_cast<std::size_t>(i)].value == rank)
              elements += box_of_shard(layout.tensors[t], placement, grid,
                                       i / grid.num_parts % grid.num_shards, i % grid.num_parts)
                              .num_elements();
        }
    return elements;
  };
  const std::int64_t all = 12 * 10 * 24;  // gates of 12 experts, 10 x 24 each
  for (int rank = 0; rank < 8; ++rank) {
    EXPECT_EQ(held(StateKind::weights, rank, "layers.0.experts.gate.weight"), all / 4);
    EXPECT_EQ(held(StateKind::optimizer, rank, "layers.0.experts.gate.weight"),
              all / 8);  // two copies in the group
    EXPECT_EQ(held(StateKind::weights, rank, "layers.0.shared.gate.weight"), 14 * 24);
    EXPECT_EQ(held(StateKind::weights, rank, "layers.0.attention.q.weight"), 24 * 24 / 2);
  }
  EXPECT_EQ(expert_shard_count(plan.pipelines[0].stages[0], shape.strategy), 2);
  shape.strategy.shard_group = 2;  // spans four devices, which have one copy of the experts
  EXPECT_EQ(expert_shard_count(plan.pipelines[0].stages[0], shape.strategy), 1);
}

}  // namespace
}  // namespace optimus
