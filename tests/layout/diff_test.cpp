// Plans from one layout to another are correct, minimal, balanced and within the memory limit, and can be
// executed.
#include "layout/diff.h"

#include <gtest/gtest.h>

#include "apply.h"
#include "layout/change.h"
#include "layout/verify.h"
#include "property.h"
#include "random_layout.h"

namespace optimus {
namespace {

Layout one_tensor(Shape shape, DeviceGrid grid, Placement placement, int bytes = 1) {
  return {{{"t", shape, bytes, 0}}, {std::move(grid)}, {{std::move(placement)}}};
}

std::vector<RankShare> shares_of(const TransferPlan& plan, int num_ranks) {
  std::vector<RankShare> shares;
  for (int r = 0; r < num_ranks; ++r) shares.push_back(share_of(plan, Rank{r}));
  return shares;
}

int world_of(const Scenario& scenario) { return std::max(num_ranks(scenario.from), num_ranks(scenario.to)); }

bool is_dead(const Scenario& scenario, Rank rank) {
  const auto& dead = scenario.options.dead;
  return std::find(dead.begin(), dead.end(), rank) != dead.end();
}

using Elements = std::vector<std::vector<bool>>;  // [tensor][element]

Elements no_elements(const Layout& layout) {
  Elements elements;
  for (const TensorInfo& tensor : layout.tensors)
    elements.emplace_back(static_cast<std::size_t>(tensor.shape.num_elements()));
  return elements;
}

Elements elements_of(const Layout& layout, Rank rank) {
  Elements elements = no_elements(layout);
  for (const TensorBox& held : boxes_of(layout, RankIndex(layout), rank)) {
    const auto t = static_cast<std::size_t>(held.tensor);
    for_each_index(held.box,
                   [&](const auto& at) { elements[t][offset_in(Box(layout.tensors[t].shape), at)] = true; });
  }
  return elements;
}

void set_where(Elements& elements, const Elements& location, bool value) {
  for (std::size_t t = 0; t < elements.size(); ++t)
    for (std::size_t i = 0; i < elements[t].size(); ++i)
      if (location[t][i]) elements[t][i] = value;
}

// Elements that some rank needs and no live rank holds.
Elements lost_elements(const Scenario& scenario) {
  Elements lost = no_elements(scenario.to);
  for (int r = 0; r < world_of(scenario); ++r) set_where(lost, elements_of(scenario.to, Rank{r}), true);
  for (int r = 0; r < world_of(scenario); ++r)
    if (!is_dead(scenario, Rank{r})) set_where(lost, elements_of(scenario.from, Rank{r}), false);
  return lost;
}

struct Counted {
  std::int64_t missing = 0, needed = 0;  // in bytes
};
Counted count_by_element(const Scenario& scenario) {
  Counted counted;
  for (int r = 0; r < world_of(scenario); ++r) {
    const Elements before = elements_of(scenario.from, Rank{r}), after = elements_of(scenario.to, Rank{r});
    for (std::size_t t = 0; t < after.size(); ++t)
      for (std::size_t i = 0; i < after[t].size(); ++i) {
        const int bytes = scenario.to.tensors[t].bytes_per_element;
        if (after[t][i]) counted.needed += bytes;
        if (after[t][i] && (is_dead(scenario, Rank{r}) || !before[t][i])) counted.missing += bytes;
      }
  }
  return counted;
}

TEST(Diff, HeaderExampleMoves) {
  const DeviceGrid two{1, 1, 2, first_ranks(2)};
  const Layout from = one_tensor({4, 4}, two, {0, 0, {{0, 2}, {2, 4}}});
  const Layout to = one_tensor({4, 4}, two, {0, 1, {{0, 2}, {2, 4}}});
  const TransferPlan plan = diff(from, to).value();
  ASSERT_EQ(plan.waves.size(), 1u);
  const RankShare share = share_of(plan, Rank{0});
  const Box mine{{0, 2}, {0, 2}}, sent{{0, 2}, {2, 4}}, received{{2, 4}, {0, 2}};
  EXPECT_EQ(share.waves[0].copies, (std::vector<TensorBox>{{0, mine}}));
  EXPECT_EQ(share.waves[0].operations,
            (std::vector<RankShare::Operation>{{false, 0, Rank{1}, received}, {true, 0, Rank{1}, sent}}));
  EXPECT_EQ(plan.moved, Bytes(8));
  EXPECT_EQ(plan.lower_bound, Bytes(8));
  EXPECT_EQ(plan.full_fetch_bytes, Bytes(16));
  EXPECT_EQ(plan.max_sent, Bytes(4));
}

TEST(Diff, UnchangedBoxesStay) {
  const Layout layout = one_tensor({5, 3}, {2, 2, 1, first_ranks(4)}, {0, -1, {}});
  const TransferPlan plan = diff(layout, layout).value();
  EXPECT_TRUE(plan.waves.empty());
  EXPECT_TRUE(plan.copies.empty());
  EXPECT_EQ(plan.moved, Bytes(0));
}

TEST(Diff, PrefersTheSameNodeThenTheSameRack) {
  // Ranks 0 and 4 hold the tensor; nodes of two, racks of four.
  const Layout from = one_tensor({8}, {2, 1, 1, {Rank{0}, Rank{4}}}, {0, -1, {}});
  const Layout to = one_tensor({8}, {8, 1, 1, first_ranks(8)}, {0, -1, {}});
  DiffOptions options;
  options.topology.domain_of = {{0, 0, 1, 1, 2, 2, 3, 3}, {0, 0, 0, 0, 1, 1, 1, 1}};
  const TransferPlan plan = diff(from, to, options).value();
  ASSERT_EQ(plan.transfers.size(), 6u);
  for (const Transfer& transfer : plan.transfers)
    EXPECT_EQ(transfer.sender.value, transfer.receiver.value < 4 ? 0 : 4);
  EXPECT_EQ(plan.moved_at, (std::vector<Bytes>{Bytes(16), Bytes(32), Bytes(0)}));
}

TEST(Diff, OwnerLoadsDifferByAtMostOne) {
  for (const int receivers : {1, 2, 3, 5, 7, 12})
    for (const int owners : {1, 2, 3, 4})
      for (const int num_tensors : {1, 2, 5}) {
        Layout from, to;
        DeviceGrid old_grid{owners, 1, 1, first_ranks(owners)}, new_grid{receivers, 1, 1, {}};
        for (int r = 0; r < receivers; ++r) new_grid.ranks.push_back(Rank{owners + r});
        from.grids = {old_grid}, to.grids = {new_grid};
        for (int t = 0; t < num_tensors; ++t) {
          from.tensors.push_back({"t" + std::to_string(t), {6, 2}, 1, t});
          from.placements.push_back({{0, -1, {}}}), to.placements.push_back({{0, -1, {}}});
        }
        to.tensors = from.tensors;
        const TransferPlan plan = diff(from, to, {.chunk = Bytes(4)}).value();  // three chunks each
        std::vector<int> sent(static_cast<std::size_t>(owners));
        for (const Transfer& transfer : plan.transfers)
          ++sent[static_cast<std::size_t>(transfer.sender.value)];
        const auto [least, most] = std::minmax_element(sent.begin(), sent.end());
        EXPECT_LE(*most - *least, 1) << receivers << " receivers, " << owners << " owners";
      }
}

TEST(Diff, SpreadsShardsOverReplicas) {
  // Four replicas become 32 shards on other ranks: every owner sends eight of them.
  const Layout from = one_tensor({64, 2}, {4, 1, 1, first_ranks(4)}, {0, -1, {}});
  DeviceGrid grid{1, 32, 1, {}};
  for (int r = 0; r < 32; ++r) grid.ranks.push_back(Rank{4 + r});
  const TransferPlan plan = diff(from, one_tensor({64, 2}, grid, {0, -1, {}})).value();
  EXPECT_EQ(plan.max_sent, Bytes(8 * 4));
}

TEST(Diff, ReportsLostBoxes) {
  const Layout from = one_tensor({4, 4}, {1, 1, 2, first_ranks(2)}, {0, 0, {{0, 2}, {2, 4}}});
  const Layout to = one_tensor({4, 4}, {1, 1, 1, {Rank{0}}}, {0, -1, {}});
  const auto plan = diff(from, to, {.dead = {Rank{1}}});
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().why, "no live rank holds [2:4, 0:4] of tensor t (missing pieces: 1)");
  EXPECT_EQ(plan.error().lost, (std::vector<TensorBox>{{0, Box{{2, 4}, {0, 4}}}}));
}

TEST(Diff, RejectsMismatchedLayouts) {
  const DeviceGrid one{1, 1, 1, {Rank{0}}};
  const Layout a = one_tensor({4}, one, {0, -1, {}}), b = one_tensor({5}, one, {0, -1, {}});
  EXPECT_THROW((void)diff(a, b), UserError);
  EXPECT_THROW((void)diff(a, a, {.dead = {Rank{0}}}), UserError);
  DiffOptions options;
  options.topology.domain_of = {{}};
  EXPECT_THROW((void)diff(a, a, options), UserError);
}

TEST(DiffProperty, MovesExactlyWhatIsMissingAndVerifies) {
  EXPECT_TRUE(holds("covers, least, verified", 300, [] {
    const Scenario scenario = random_scenario();
    const TransferPlan plan = diff(scenario.from, scenario.to, scenario.options).value();
    const Counted counted = count_by_element(scenario);
    RC_ASSERT(plan.moved.value == counted.missing);
    RC_ASSERT(plan.lower_bound.value == counted.missing);
    RC_ASSERT(plan.full_fetch_bytes.value == counted.needed);
    RC_ASSERT(plan.moved <= plan.full_fetch_bytes);
    const auto outcome = verify(scenario.from, scenario.to, plan, scenario.options);
    if (!outcome) RC_FAIL(outcome.error().why);
  }));
}

TEST(DiffProperty, ExecutionYieldsNewLayout) {
  EXPECT_TRUE(holds("contents", 200, [] {
    const Scenario scenario = random_scenario();
    const int world = world_of(scenario);
    const World before = filled_world(scenario.from, world);
    const TransferPlan there = diff(scenario.from, scenario.to, scenario.options).value();
    Executor executor(scenario.from, scenario.to, before);
    const World after = executor.run(shares_of(there, world));
    RC_ASSERT(sorted(after) == sorted(filled_world(scenario.to, world)));
    RC_ASSERT(executor.largest_excess() == there.reserve);
    const TransferPlan back = diff(scenario.to, scenario.from, scenario.options).value();
    const World again = Executor(scenario.to, scenario.from, after).run(shares_of(back, world));
    RC_ASSERT(sorted(again) == sorted(before));
  }));
}

TEST(DiffProperty, UsesNearestOwner) {
  EXPECT_TRUE(holds("nearest", 100, [] {
    const Scenario scenario = random_scenario();
    const TransferPlan plan = diff(scenario.from, scenario.to, scenario.options).value();
    const RankIndex index(scenario.from);
    for (const Transfer& transfer : plan.transfers) {
      const Box& box = plan.boxes[static_cast<std::size_t>(transfer.box)];
      int nearest = 99;
      for (int r = 0; r < index.num_ranks(); ++r)
        for (const TensorBox& held : boxes_of(scenario.from, index, Rank{r}))
          if (held.tensor == transfer.tensor && held.box.contains(box))
            nearest = std::min(nearest, distance(scenario.options.topology, Rank{r}, transfer.receiver));
      RC_ASSERT(distance(scenario.options.topology, transfer.sender, transfer.receiver) == nearest);
    }
  }));
}

TEST(DiffProperty, LocalSharesMatchPlan) {
  EXPECT_TRUE(holds("diff_for", 200, [] {
    const Scenario scenario = random_scenario();
    const LayoutChange change(scenario.from, scenario.to, scenario.options);
    const WaveOrder order = order_waves(change).value();
    const TransferPlan plan = diff(change, order).value();
    std::vector<RankShare> shares;
    for (int r = 0; r < world_of(scenario); ++r) {
      shares.push_back(diff_for(change, order, Rank{r}).value());
      RC_ASSERT(shares.back() == share_of(plan, Rank{r}));
    }
    const auto outcome = verify(scenario.from, scenario.to, shares, scenario.options);
    if (!outcome) RC_FAIL(outcome.error().why);
  }));
}

// As documented in the header, execution may complete each operation before it starts the next one.
TEST(DiffProperty, RunsWithOneOperationInFlight) {
  EXPECT_TRUE(holds("one at a time", 100, [] {
    const Scenario scenario = random_scenario();
    const TransferPlan plan = diff(scenario.from, scenario.to, scenario.options).value();
    std::vector<std::vector<PostedOperation>> programs(static_cast<std::size_t>(world_of(scenario)));
    for (std::size_t i = 0; i < plan.transfers.size(); ++i)
      for (const bool is_send : {true, false}) {
        const Transfer& transfer = plan.transfers[i];
        auto& program =
            programs[static_cast<std::size_t>((is_send ? transfer.sender : transfer.receiver).value)];
        const int peer = (is_send ? transfer.receiver : transfer.sender).value;
        program.push_back({static_cast<int>(program.size()), peer, is_send, i});
      }
    const auto outcome = check_no_deadlock(programs);
    if (!outcome) RC_FAIL(outcome.error().why);
  }));
}

TEST(DiffProperty, KeepsReserveOrReportsSufficientOne) {
  EXPECT_TRUE(holds("reserve", 300, [] {
    Scenario scenario = random_scenario();
    scenario.options.reserve = Bytes(draw(0, 60));
    auto plan = diff(scenario.from, scenario.to, scenario.options);
    if (!plan) {
      RC_ASSERT(plan.error().reserve > *scenario.options.reserve);
      scenario.options.reserve = plan.error().reserve;
      plan = diff(scenario.from, scenario.to, scenario.options);
    }
    RC_ASSERT(plan.has_value());
    RC_ASSERT(plan->reserve <= *scenario.options.reserve);
    const int world = world_of(scenario);
    Executor executor(scenario.from, scenario.to, filled_world(scenario.from, world));
    RC_ASSERT(sorted(executor.run(shares_of(*plan, world))) == sorted(filled_world(scenario.to, world)));
    RC_ASSERT(executor.largest_excess() <= *scenario.options.reserve);
    const auto outcome = verify(scenario.from, scenario.to, *plan, scenario.options);
    if (!outcome) RC_FAIL(outcome.error().why);
  }));
}

TEST(DiffProperty, DeadRanksNeverSend) {
  EXPECT_TRUE(holds("dead", 300, [] {
    const Scenario scenario = random_scenario(true);
    const Elements lost = lost_elements(scenario);
    std::int64_t num_lost = 0;
    for (const auto& tensor : lost) num_lost += std::count(tensor.begin(), tensor.end(), true);
    const auto plan = diff(scenario.from, scenario.to, scenario.options);
    RC_ASSERT(plan.has_value() == (num_lost == 0));
    if (!plan) {
      Elements named = no_elements(scenario.to);
      for (const TensorBox& box : plan.error().lost) {
        const auto t = static_cast<std::size_t>(box.tensor);
        for_each_index(box.box, [&](const auto& at) {
          named[t][offset_in(Box(scenario.to.tensors[t].shape), at)] = true;
        });
      }
      RC_ASSERT(named == lost);
      return;
    }
    for (const Transfer& transfer : plan->transfers) RC_ASSERT(!is_dead(scenario, transfer.sender));
    RC_ASSERT(plan->moved.value == count_by_element(scenario).missing);
    const auto outcome = verify(scenario.from, scenario.to, *plan, scenario.options);
    if (!outcome) RC_FAIL(outcome.error().why);
    const LayoutChange change(scenario.from, scenario.to, scenario.options);
    const WaveOrder order = order_waves(change).value();
    for (int r = 0; r < world_of(scenario); ++r)
      RC_ASSERT(diff_for(change, order, Rank{r}).value() == share_of(*plan, Rank{r}));
  }));
}

}  // namespace
}  // namespace optimus
