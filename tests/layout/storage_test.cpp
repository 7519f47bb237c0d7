// The placement of boxes in buffers, and the runs that copies use.
#include "layout/storage.h"

#include <gtest/gtest.h>

#include <map>

#include "apply.h"
#include "base/error.h"
#include "property.h"
#include "random_layout.h"

namespace optimus {
namespace {

// q, k, v and o of one layer with 3 columns, tensor parallel 2, on ranks 0 and 1.
Layout attention() {
  Layout layout;
  layout.grids = {{1, 1, 2, first_ranks(2)}};
  const auto add = [&](const char* name, Shape shape, int split_dim) {
    layout.tensors.push_back({name, shape, 4, 1});
    layout.placements.push_back({{0, split_dim, split_evenly(shape[split_dim], 2)}});
  };
  add("q", {8, 3}, 0), add("k", {4, 3}, 0), add("v", {2, 3}, 0), add("o", {3, 8}, 1);
  return layout;
}

TEST(Storage, FusesPadsAndAligns) {
  const Layout layout = attention();
  StorageSpec spec{.fusions = {{0, 1, 2}}, .types = {}, .row_multiple = 8};
  spec.types.assign(4, StorageType::bf16);
  const Storage storage = build_storage(layout, RankIndex(layout), Rank{1}, spec);
  ASSERT_EQ(storage.buffers.size(), 1u);
  EXPECT_EQ(storage.buffers[0], (StorageBuffer{"block.1.bf16", StorageType::bf16, 256}));
  const std::vector<StorageEntry> expected{{0, Box{{4, 8}, {0, 3}}, 0, 0, 3, false},
                                           {1, Box{{2, 4}, {0, 3}}, 0, 12, 3, false},
                                           {2, Box{{1, 2}, {0, 3}}, 0, 18, 3, false},
                                           {3, Box{{0, 3}, {4, 8}}, 0, 128, 4, false}};
  EXPECT_EQ(storage.entries, expected);
  EXPECT_FALSE(find_overlap(storage));
}

TEST(Storage, TransposesFusedMatrices) {
  const Layout layout = attention();
  const StorageSpec spec{.fusions = {{0, 1, 2}}, .transposed = {0, 1, 2}};
  const Storage storage = build_storage(layout, RankIndex(layout), Rank{0}, spec);
  EXPECT_EQ(storage.entries[1], (StorageEntry{1, Box{{0, 2}, {0, 3}}, 0, 4, 7, true}));
  EXPECT_FALSE(find_overlap(storage));  // the columns of q, k and v interleave
  EXPECT_EQ(copy_runs(storage.entries[1], Box{{1, 2}, {0, 2}}),
            (std::vector<CopyRun>{{5, 1, 0, 2}, {12, 1, 1, 2}}));
}

TEST(Storage, ShardsOfATensorHaveEqualPlaces) {
  Layout layout{
      {{"w", {5, 2}, 4, 0}, {"b", {3}, 4, 0}}, {{1, 4, 1, first_ranks(4)}}, {{{0, -1, {}}}, {{0, -1, {}}}}};
  const RankIndex index(layout);
  const Storage first = build_storage(layout, index, Rank{0}, {});
  for (int r = 1; r < 4; ++r) {
    const Storage other = build_storage(layout, index, Rank{r}, {});
    EXPECT_EQ(other.buffers, first.buffers);
    ASSERT_EQ(other.entries.size(), 2u);
    for (std::size_t e = 0; e < 2; ++e) EXPECT_EQ(other.entries[e].offset, first.entries[e].offset);
  }
  EXPECT_TRUE(build_storage(layout, index, Rank{3}, {}).entries[0].box.is_empty());
}

TEST(Storage, RunsAreAsLongAsPossible) {
  const StorageEntry entry{0, Box{{2, 6}, {0, 3}, {0, 5}}, 0, 100, 15, false};
  EXPECT_EQ(copy_runs(entry, entry.box), (std::vector<CopyRun>{{100, 60, 0, 1}}));
  EXPECT_EQ(copy_runs(entry, Box{{3, 5}, {1, 3}, {0, 5}}),
            (std::vector<CopyRun>{{120, 10, 0, 1}, {135, 10, 10, 1}}));
  EXPECT_EQ(copy_runs(entry, Box{{3, 4}, {1, 3}, {2, 3}}),
            (std::vector<CopyRun>{{122, 1, 0, 1}, {127, 1, 1, 1}}));
  EXPECT_TRUE(copy_runs(entry, Box{{3, 3}, {1, 3}, {2, 3}}).empty());
  const StorageEntry padded{0, Box{{0, 2}, {0, 3}}, 0, 0, 4, false};  // the row stride exceeds the row width
  EXPECT_EQ(copy_runs(padded, padded.box), (std::vector<CopyRun>{{0, 3, 0, 1}, {4, 3, 3, 1}}));
}

TEST(Storage, FindsOverlaps) {
  const Layout layout = attention();
  Storage storage = build_storage(layout, RankIndex(layout), Rank{0}, {.fusions = {{0, 1, 2}}});
  storage.entries[2].offset -= 1;
  EXPECT_EQ(find_overlap(storage)->second_entry, 2u);
  storage.entries[2].offset = storage.buffers[0].num_elements - 2;
  EXPECT_EQ(find_overlap(storage)->first_entry, 2u);
}

TEST(Storage, RejectsInvalidSpecs) {
  const Layout layout = attention();
  const RankIndex index(layout);
  const auto build = [&](const StorageSpec& spec) { return build_storage(layout, index, Rank{0}, spec); };
  EXPECT_THROW(build({.fusions = {{0, 3}}}), UserError);  // rows of width 3 and 4
  EXPECT_THROW(build({.fusions = {{0, 1}, {1, 2}}}), UserError);
  EXPECT_THROW(build({.fusions = {{0, 9}}}), UserError);
  EXPECT_THROW(build({.fusions = {{0, 1}}, .transposed = {0}}), UserError);
  EXPECT_THROW(build({.types = {StorageType::fp32}}), UserError);
  EXPECT_THROW(build({.alignment = 24}), UserError);
  EXPECT_THROW(build({.row_multiple = 0}), UserError);
}

// Every element of a box has a unique position, and runs address it correctly.
TEST(StorageProperty, RunsMatchOffsetFormula) {
  EXPECT_TRUE(holds("runs", 300, [] {
    const Layout layout = random_layout(random_tensors(), first_ranks(draw(1, 6)));
    StorageSpec spec{.row_multiple = draw(1, 4), .alignment = 1 << draw(0, 8)};
    for (int t = 0; t < static_cast<int>(layout.tensors.size()); ++t) {
      if (layout.tensors[static_cast<std::size_t>(t)].shape.num_dims == 2 && one_in(2))
        spec.transposed.push_back(t);
      spec.types.push_back(one_in(2) ? StorageType::bf16 : StorageType::fp32);
    }
    const Rank rank{draw(0, num_ranks(layout) - 1)};
    const Storage storage = build_storage(layout, RankIndex(layout), rank, spec);
    RC_ASSERT(!find_overlap(storage));
    for (const StorageEntry& entry : storage.entries) {
      if (entry.box.is_empty()) continue;
      Box sub = entry.box;
      for (int d = 0; d < sub.num_dims; ++d) {
        sub[d].begin = draw(static_cast<int>(sub[d].begin), static_cast<int>(sub[d].end) - 1);
        sub[d].end = draw(static_cast<int>(sub[d].begin) + 1, static_cast<int>(sub[d].end));
      }
      std::map<std::int64_t, std::int64_t> place_of;  // element of the sub-box -> position in the buffer
      for (const CopyRun& run : copy_runs(entry, sub))
        for (std::int64_t i = 0; i < run.length; ++i)
          RC_ASSERT(place_of.emplace(run.box_offset + i * run.box_stride, run.offset + i).second);
      RC_ASSERT(static_cast<std::int64_t>(place_of.size()) == sub.num_elements());
      for_each_index(sub, [&](const auto& at) {
        const auto in_box = static_cast<std::int64_t>(offset_in(entry.box, at));
        const std::int64_t columns = entry.box.num_elements() / entry.box[0].size();
        const std::int64_t row = in_box / columns, column = in_box % columns;
        const std::int64_t place = entry.is_transposed ? entry.offset + column * entry.row_stride + row
                                                       : entry.offset + row * entry.row_stride + column;
        RC_ASSERT(place_of.at(static_cast<std::int64_t>(offset_in(sub, at))) == place);
      });
    }
  }));
}

}  // namespace
}  // namespace optimus
