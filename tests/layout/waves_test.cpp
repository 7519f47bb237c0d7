// Orders within the memory limit and the choice of senders, each compared with a slower reference
// implementation.
#include <gtest/gtest.h>

#include <numeric>

#include "base/error.h"
#include "layout/banker.h"
#include "layout/change.h"
#include "layout/fanout.h"
#include "layout/rank_domains.h"
#include "property.h"
#include "random_layout.h"

namespace optimus {
namespace {

struct RandomBanker {
  MoveOrderProblem problem;
  std::vector<int> kind_of;
};

RandomBanker random_banker(int num_classes, int num_items) {
  RandomBanker random;
  random.problem.num_classes = num_classes;
  for (int i = 0; i < num_items; ++i) {
    MemoryDemandKind kind{{}, {i}};
    for (int c = 0; c < num_classes; ++c)
      if (num_classes == 1 || !one_in(3)) kind.demands.push_back({c, draw(0, 9), draw(0, 9)});
    random.problem.kinds.push_back(kind);
    random.kind_of.push_back(i);
  }
  return random;
}

std::int64_t least_excess(const RandomBanker& random) {
  std::vector<int> order(random.kind_of.size());
  std::iota(order.begin(), order.end(), 0);
  std::int64_t least = excess_of(random.problem, random.kind_of, order);
  while (std::next_permutation(order.begin(), order.end()))
    least = std::min(least, excess_of(random.problem, random.kind_of, order));
  return least;
}

TEST(BankerProperty, OrdersKeepReserve) {
  EXPECT_TRUE(holds("keeps", 300, [] {
    const RandomBanker random = random_banker(draw(1, 4), draw(1, 6));
    const std::int64_t reserve = draw(0, 20);
    const auto order = find_order(random.problem, reserve);
    if (!order) return;
    std::vector<int> all = *order;
    std::sort(all.begin(), all.end());
    for (int i = 0; i < static_cast<int>(all.size()); ++i) RC_ASSERT(all[static_cast<std::size_t>(i)] == i);
    RC_ASSERT(excess_of(random.problem, random.kind_of, *order) <= reserve);
    const MergedOrder merged =
        merge_adjacent(random.problem, random.kind_of, *order, reserve, [](int, int) { return true; });
    RC_ASSERT(merged.excess <= reserve);
  }));
}

// For one class whose things all shrink or all grow, the greedy rule is optimal.
TEST(BankerProperty, OptimalForMonotoneRank) {
  EXPECT_TRUE(holds("best", 200, [] {
    RandomBanker random = random_banker(1, draw(1, 6));
    const bool grows = one_in(2);
    for (MemoryDemandKind& kind : random.problem.kinds) {
      MemoryDemand& demand = kind.demands[0];
      if ((demand.allocated > demand.freed) != grows) std::swap(demand.allocated, demand.freed);
    }
    const std::int64_t least = least_excess(random);
    RC_ASSERT(find_order(random.problem, least).has_value());
    RC_ASSERT(least == 0 || !find_order(random.problem, least - 1).has_value());
  }));
}

// In general the rule is a heuristic; on small random problems it is nearly always optimal.
TEST(BankerProperty, UsuallyOptimal) {
  int num_found = 0, num_all = 0;
  EXPECT_TRUE(holds("near", 300, [&] {
    const RandomBanker random = random_banker(draw(1, 4), draw(1, 5));
    const std::int64_t least = least_excess(random);
    ++num_all;
    if (find_order(random.problem, least)) ++num_found;
    RC_ASSERT(find_order(random.problem, 2 * least + 9).has_value());
  }));
  EXPECT_GT(num_found, num_all * 8 / 10);
}

TEST(Waves, AlternateBetweenStagesWhenMemoryIsFull) {
  // Two stages of one rank each become two ranks that hold half of every layer. In the order of the model,
  // rank 1 would receive four halves before it sends anything. If layers alternate between the stages, it
  // never exceeds two.
  Layout from, to;
  from.grids = {{1, 1, 1, {Rank{0}}}, {1, 1, 1, {Rank{1}}}};
  to.grids = {{1, 2, 1, first_ranks(2)}};
  for (int t = 0; t < 8; ++t) {
    from.tensors.push_back({"t" + std::to_string(t), {10}, 1, t});
    from.placements.push_back({{t / 4, -1, {}}});
    to.placements.push_back({{0, -1, {}}});
  }
  to.tensors = from.tensors;
  DiffOptions options{.reserve = Bytes(10)};
  const auto order = order_waves(LayoutChange(from, to, options));
  ASSERT_TRUE(order);
  EXPECT_EQ(order->reserve, Bytes(10));
  options.reserve = Bytes(4);
  const auto none = order_waves(LayoutChange(from, to, options));
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().why,
            "the memory reserve of 4 B is too small for this layout change; 10 B would be sufficient");
}

TEST(Waves, AlternateBetweenSenders) {
  // Four layers from each of two stages, plus an embedding on the first one: neither stage sends everything
  // before the other begins.
  Layout from, to;
  from.grids = {{1, 1, 1, {Rank{0}}}, {1, 1, 1, {Rank{1}}}};
  to.grids = {{1, 2, 1, first_ranks(2)}};
  for (int t = 0; t < 9; ++t) {
    from.tensors.push_back({"t" + std::to_string(t), {t == 0 ? 30 : 10}, 1, t});
    from.placements.push_back({{t < 5 ? 0 : 1, -1, {}}});
    to.placements.push_back({{0, -1, {}}});
  }
  to.tensors = from.tensors;
  EXPECT_EQ(order_waves(LayoutChange(from, to, {}))->waves,
            (std::vector<std::vector<int>>{{1}, {5}, {2}, {6}, {0}, {3}, {7}, {4}, {8}}));
}

TEST(Waves, MovesWholeBlocksWithoutMemoryLimit) {
  Layout from{{}, {{1, 1, 1, {Rank{0}}}}, {}}, to{{}, {{1, 1, 1, {Rank{1}}}}, {}};
  for (int t = 0; t < 6; ++t) {
    from.tensors.push_back({"t" + std::to_string(t), {2}, 1, t / 3});
    from.placements.push_back({{0, -1, {}}}), to.placements.push_back({{0, -1, {}}});
  }
  to.tensors = from.tensors;
  EXPECT_EQ(order_waves(LayoutChange(from, to, {}))->waves,
            (std::vector<std::vector<int>>{{0, 1, 2}, {3, 4, 5}}));
}

TEST(RankDomains, DistancesAndPlaces) {
  const RankDomains topology{{{5, 5, 1, 1, 5, 2}, {0, 0, 7, 7, 0, 7}}};
  EXPECT_EQ(distance(topology, Rank{0}, Rank{4}), 0);
  EXPECT_EQ(distance(topology, Rank{2}, Rank{5}), 1);
  EXPECT_EQ(distance(topology, Rank{0}, Rank{5}), 2);
  const RankPlaces places(topology, 6);
  EXPECT_EQ(places.place_of(Rank{4}), 2);  // node 5 = {0, 1, 4} is first
  EXPECT_EQ(places.domain(0, places.place_of(Rank{3})).end - places.domain(0, places.place_of(Rank{3})).begin,
            2);
  EXPECT_THROW(RankPlaces({{{0, 1, 0}, {0, 0, 1}}}, 3), UserError);  // node 0 is in two racks
  EXPECT_THROW(RankPlaces({{{0, 1}}}, 3), UserError);
}

TEST(FanoutProperty, LocalResultMatchesGlobal) {
  EXPECT_TRUE(holds("fanout", 300, [] {
    const int world = draw(2, 24);
    const RankPlaces places(random_topology(world), world);
    std::vector<int> owners, receivers;
    for (int place = 0; place < world; ++place) {
      if (one_in(3)) owners.push_back(place);
      if (!one_in(3)) receivers.push_back(place);
    }
    if (owners.empty()) owners.push_back(draw(0, world - 1));
    Fanouts fanouts;
    split_receivers(receivers, owners, places, fanouts);
    RC_ASSERT(fanouts.needs.size() + fanouts.holders.size() == receivers.size());
    for (const FanoutNeed& need : fanouts.needs) {
      const Fanout& fanout = fanouts.fanouts[static_cast<std::size_t>(need.fanout)];
      const ReceiverFanout own = fanout_of(receivers, owners, places, need.receiver);
      RC_ASSERT(own.k == need.k);
      RC_ASSERT(std::tie(own.fanout.first_owner, own.fanout.num_owners, own.fanout.num_receivers,
                         own.fanout.level) ==
                std::tie(fanout.first_owner, fanout.num_owners, fanout.num_receivers, fanout.level));
      const int round = draw(0, 100);
      const int owner = fanout.owner(need.k, round);
      RC_ASSERT(fanout.first_receiver(owner, round) == need.k % fanout.num_owners);
    }
  }));
}

}  // namespace
}  // namespace optimus
