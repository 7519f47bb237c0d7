// Gradient reductions compared with the owners of every single element.
#include "layout/sync.h"

#include <gtest/gtest.h>

#include "apply.h"
#include "base/error.h"
#include "property.h"
#include "random_layout.h"

namespace optimus {
namespace {

TEST(Sync, HeaderExample) {
  const Layout layout{{{"w", {12}, 4, 0}},
                      {{1, 1, 2, first_ranks(2)}, {1, 1, 3, {Rank{2}, Rank{3}, Rank{4}}}},
                      {{{0, 0, split_evenly(12, 2)}, {1, 0, split_evenly(12, 3)}}}};
  const SyncPlan plan = sync(layout);
  std::vector<std::pair<std::string, std::vector<Rank>>> found;
  for (const Reduction& reduction : plan.reductions)
    found.emplace_back(text(plan.boxes[static_cast<std::size_t>(reduction.box)]),
                       plan.groups[static_cast<std::size_t>(reduction.group)]);
  const std::vector<std::pair<std::string, std::vector<Rank>>> expected{{"[0:4]", {Rank{0}, Rank{2}}},
                                                                        {"[4:6]", {Rank{0}, Rank{3}}},
                                                                        {"[6:8]", {Rank{1}, Rank{3}}},
                                                                        {"[8:12]", {Rank{1}, Rank{4}}}};
  EXPECT_EQ(found, expected);
  EXPECT_EQ(canonical_owner(plan, plan.reductions[2]), Rank{1});
}

TEST(Sync, ManyTensorsShareFewGroups) {
  Layout layout;
  layout.grids = {{4, 1, 2, first_ranks(8)}};
  for (int t = 0; t < 50; ++t) {
    layout.tensors.push_back({"t" + std::to_string(t), {8, t % 3 + 2}, 4, t});
    layout.placements.push_back({{0, 0, split_evenly(8, 2)}});
  }
  const SyncPlan plan = sync(layout);
  EXPECT_EQ(plan.groups.size(), 2u);
  EXPECT_EQ(plan.boxes.size(), 6u);
  EXPECT_EQ(plan.reductions.size(), 100u);
}

TEST(Sync, RejectsInvalidLayout) { EXPECT_THROW(sync({{{"w", {4}, 4, 0}}, {}, {{{0, -1, {}}}}}), UserError); }

TEST(SyncProperty, EachElementInOneReduction) {
  EXPECT_TRUE(holds("owners", 300, [] {
    const Layout layout = random_layout(random_tensors(), first_ranks(draw(1, 9)));
    const RankIndex index(layout);
    std::vector<std::vector<std::vector<Rank>>> owners;
    std::vector<std::vector<int>> times;
    for (const TensorInfo& tensor : layout.tensors) {
      owners.emplace_back(static_cast<std::size_t>(tensor.shape.num_elements()));
      times.emplace_back(static_cast<std::size_t>(tensor.shape.num_elements()));
    }
    for (int r = 0; r < index.num_ranks(); ++r)
      for (const TensorBox& held : boxes_of(layout, index, Rank{r})) {
        const auto t = static_cast<std::size_t>(held.tensor);
        for_each_index(held.box, [&](const auto& at) {
          auto& list = owners[t][offset_in(Box(layout.tensors[t].shape), at)];
          if (list.empty() || list.back() != Rank{r}) list.push_back(Rank{r});
        });
      }
    const SyncPlan plan = sync(layout);
    for (const Reduction& reduction : plan.reductions) {
      const auto t = static_cast<std::size_t>(reduction.tensor);
      const auto& group = plan.groups[static_cast<std::size_t>(reduction.group)];
      RC_ASSERT(canonical_owner(plan, reduction) == *std::min_element(group.begin(), group.end()));
      for_each_index(plan.boxes[static_cast<std::size_t>(reduction.box)], [&](const auto& at) {
        const std::size_t element = offset_in(Box(layout.tensors[t].shape), at);
        ++times[t][element];
        RC_ASSERT(owners[t][element] == group);
      });
    }
    for (const auto& tensor : times)
      for (const int count : tensor) RC_ASSERT(count == 1);
    for (std::size_t a = 0; a < plan.groups.size(); ++a)
      for (std::size_t b = 0; b < a; ++b) RC_ASSERT(plan.groups[a] != plan.groups[b]);
  }));
}

}  // namespace
}  // namespace optimus
