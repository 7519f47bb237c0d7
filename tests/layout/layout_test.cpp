// Splits, boxes, seats, and the validation of layouts.
#include "layout/layout.h"

#include <gtest/gtest.h>

#include <limits>
#include <set>

#include "base/error.h"
#include "property.h"
#include "random_layout.h"

namespace optimus {
namespace {

std::string layout_error(const Layout& layout) {
  try {
    validate(layout);
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

// The example of layout.h.
Layout example() {
  return {{{"w", {4, 6}, 2, 0}}, {{2, 2, 2, first_ranks(8)}}, {{{0, 1, {{0, 3}, {3, 6}}}}}};
}

TEST(Split, EvenlyAndByWeight) {
  EXPECT_EQ(split_evenly(7, 3), (std::vector<Span>{{0, 3}, {3, 5}, {5, 7}}));
  EXPECT_EQ(split_evenly(2, 3), (std::vector<Span>{{0, 1}, {1, 2}, {2, 2}}));
  EXPECT_EQ(split_by_weight(10, {1, 1, 2}), (std::vector<Span>{{0, 3}, {3, 5}, {5, 10}}));
  EXPECT_EQ(split_by_weight(5, {0, 1, 0}), (std::vector<Span>{{0, 0}, {0, 5}, {5, 5}}));
  EXPECT_THROW(split_by_weight(5, {0, 0}), UserError);
  EXPECT_THROW(split_by_weight(5, {1, -1}), UserError);
  EXPECT_THROW(split_by_weight(5, {std::numeric_limits<double>::infinity()}), UserError);
}

TEST(Split, ShardsAreBlocksOfEqualSizeWithAnEmptyTail) {
  EXPECT_EQ(shard_span(10, 4, 0), (Span{0, 3}));
  EXPECT_EQ(shard_span(10, 4, 3), (Span{9, 10}));
  EXPECT_EQ(shard_span(5, 4, 2), (Span{4, 5}));
  EXPECT_EQ(shard_span(5, 4, 3), (Span{5, 5}));
}

TEST(SplitProperty, SplitsAreCompleteAndFair) {
  EXPECT_TRUE(holds("splits", 500, [] {
    const std::int64_t n = draw(0, 1000);
    std::vector<double> weights;
    const int parts = draw(1, 9);
    for (int i = 0; i < parts; ++i) weights.push_back(draw(i == 0 ? 1 : 0, 20));
    double sum = 0;
    for (const double weight : weights) sum += weight;
    const auto spans = split_by_weight(n, weights);
    std::int64_t covered = 0;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      RC_ASSERT(spans[i].begin == covered);
      covered = spans[i].end;
      const double share = static_cast<double>(n) * weights[i] / sum;
      RC_ASSERT(std::abs(static_cast<double>(spans[i].size()) - share) < 1 + 1e-9);
      if (weights[i] == 0) RC_ASSERT(spans[i].size() == 0);
    }
    RC_ASSERT(covered == n);
    std::int64_t in_shards = 0;
    for (int i = 0; i < parts; ++i) in_shards += shard_span(n, parts, i).size();
    RC_ASSERT(in_shards == n);
  }));
}

TEST(Layout, BoxesOfTheExample) {
  const Layout layout = example();
  const RankIndex index(layout);
  EXPECT_EQ(index.num_ranks(), 8);
  EXPECT_EQ(index.positions(Rank{6})[0], (RankIndex::GridPosition{0, 1, 1, 0}));
  EXPECT_TRUE(index.positions(Rank{8}).empty());
  EXPECT_EQ(boxes_of(layout, index, Rank{0}), (std::vector<TensorBox>{{0, Box{{0, 2}, {0, 3}}}}));
  EXPECT_EQ(boxes_of(layout, index, Rank{7}), (std::vector<TensorBox>{{0, Box{{2, 4}, {3, 6}}}}));
  EXPECT_EQ(bytes_of(layout, index, Rank{7}), Bytes(12));
}

TEST(Layout, TiedTensorListedOncePerBox) {
  Layout layout = example();
  layout.grids.push_back({1, 1, 1, {Rank{0}}});
  layout.placements[0].push_back({1, -1, {}});
  layout.placements[0].push_back({1, -1, {}});
  EXPECT_EQ(boxes_of(layout, RankIndex(layout), Rank{0}),
            (std::vector<TensorBox>{{0, Box{{0, 2}, {0, 3}}}, {0, Box{{0, 4}, {0, 6}}}}));
}

TEST(Layout, ReportsInvalidLayouts) {
  EXPECT_EQ(layout_error(example()), "");
  Layout layout = example();
  layout.grids[0].ranks[3] = Rank{0};
  EXPECT_EQ(layout_error(layout), "grid 0 contains rank 0 twice");
  layout = example();
  layout.grids[0].ranks.pop_back();
  EXPECT_EQ(layout_error(layout), "grid 0: expected 8 ranks for its shape 2 x 2 x 2, got 7");
  layout = example();
  layout.grids[0].num_parts = 1 << 30;
  EXPECT_NE(layout_error(layout).find("more than"), std::string::npos);
  layout = example();
  layout.grids[0].ranks[0] = Rank{2'000'000'000};
  EXPECT_EQ(layout_error(layout),
            fmt::format("grid 0: expected ranks from 0 to {}, got 2000000000", kMaxRanks - 1));
  layout = example();
  layout.placements[0][0].parts[1] = {4, 6};
  EXPECT_EQ(layout_error(layout), "tensor 'w': the parts on grid 0 do not cover dimension 1 of shape [4, 6]");
  layout.placements[0][0].parts[1] = {3, 7};
  EXPECT_EQ(layout_error(layout), "tensor 'w': part 3:7 is not inside dimension 1 of shape [4, 6]");
  layout.placements[0][0] = {0, 2, {{0, 1}, {1, 2}}};
  EXPECT_NE(layout_error(layout).find("is split along dimension 2"), std::string::npos);
  layout.placements[0][0] = {1, -1, {}};
  EXPECT_EQ(layout_error(layout), "tensor 'w' is placed on grid 1, but the number of grids is 1");
  layout = example();
  layout.tensors[0].shape = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  EXPECT_NE(layout_error(layout).find("63 bits"), std::string::npos);
  layout.tensors[0].shape = {-1, 2};
  EXPECT_NE(layout_error(layout).find("negative"), std::string::npos);
  layout.tensors[0].shape = Shape{};
  EXPECT_NE(layout_error(layout).find("expected 1 to 4 dims, got 0"), std::string::npos);
  layout.placements.clear();
  EXPECT_EQ(layout_error(layout), "a layout with 1 tensors has placements for 0 tensors");
}

TEST(LayoutProperty, RandomLayoutsAreValidAndEveryElementIsHeld) {
  EXPECT_TRUE(holds("held", 200, [] {
    const Layout layout = random_layout(random_tensors(), first_ranks(draw(1, 9)));
    validate(layout);
    const RankIndex index(layout);
    for (int t = 0; t < static_cast<int>(layout.tensors.size()); ++t) {
      std::int64_t most = 0;
      for (int r = 0; r < index.num_ranks(); ++r)
        for (const TensorBox& held : boxes_of(layout, index, Rank{r}))
          if (held.tensor == t) most += held.box.num_elements();
      RC_ASSERT(most >= layout.tensors[static_cast<std::size_t>(t)].shape.num_elements());
    }
  }));
}

}  // namespace
}  // namespace optimus
