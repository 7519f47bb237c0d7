// A large model on many devices: the results are correct there too, and no cost grows with ranks * ranks.
// bench/layout_bench.cpp measures the times; the limits here are wide enough for a loaded machine.
#include <gtest/gtest.h>

#include <chrono>

#include "bench/llama_405b.h"
#include "layout/assign.h"
#include "layout/change.h"
#include "layout/sync.h"
#include "layout/verify.h"

namespace optimus {
namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

TEST(Scale, PlanFor512DevicesIsValid) {
  const Layout from = llama_405b({4, 16, true}), to = llama_405b({2, 32, true});
  const DiffOptions options{.topology = nodes_and_racks(512), .reserve = Bytes(std::int64_t{2} << 30)};
  const LayoutChange change(from, to, options);
  const auto order = order_waves(change);
  ASSERT_TRUE(order) << order.error().why;
  const TransferPlan plan = diff(change, *order).value();
  EXPECT_EQ(plan.moved, plan.lower_bound);
  EXPECT_LE(plan.reserve, *options.reserve);
  const auto outcome = verify(from, to, plan, options);
  EXPECT_TRUE(outcome) << outcome.error().why;
  for (const int rank : {0, 77, 300, 511})
    EXPECT_EQ(diff_for(change, *order, Rank{rank}).value(), share_of(plan, Rank{rank}));
}

TEST(Scale, ReplicasShareSends) {
  // Every old replica serves one of the new ones: no rank sends more than twice the bytes that one receives.
  const Layout from = llama_405b({4, 16, false}), to = llama_405b({2, 32, false});
  const TransferPlan plan = diff(from, to).value();
  EXPECT_LE(plan.max_sent / plan.max_received, 1.1);
}

TEST(Scale, AssignmentIsExactForShardedState) {
  const Layout from = llama_405b({4, 16, true}), to = llama_405b({2, 32, true});
  std::vector<Rank> devices;
  for (int r = 0; r < 512; ++r) devices.push_back(Rank{r});
  const Assignment found = assign_devices(from, to, devices);
  EXPECT_TRUE(found.is_exact);
  EXPECT_EQ(diff(from, with_devices(to, found.device_of))->moved, found.needed_bytes - found.bytes_in_place);
  EXPECT_LT(found.needed_bytes - found.bytes_in_place, diff(from, to)->moved);
}

TEST(Scale, ShareFor100000DevicesIsFast) {
  for (const bool is_sharded : {true, false}) {
    const Layout from = llama_405b({16, 782, is_sharded}), to = llama_405b({8, 1564, is_sharded});
    const auto begin = std::chrono::steady_clock::now();
    const LayoutChange change(from, to, {.reserve = Bytes(std::int64_t{1} << 30)});
    const auto order = order_waves(change);
    ASSERT_TRUE(order) << order.error().why;
    const RankShare share = diff_for(change, *order, Rank{54'321}).value();
    EXPECT_LT(seconds_since(begin), 3.0);
    const auto outcome = verify_share(from, change.from_index, to, change.to_index, share, change.options);
    EXPECT_TRUE(outcome) << outcome.error().why;
  }
}

TEST(Scale, GradientGroupsOf100000DevicesAreFew) {
  const auto begin = std::chrono::steady_clock::now();
  const SyncPlan plan = sync(llama_405b({16, 782, false}));
  EXPECT_LT(seconds_since(begin), 3.0);
  EXPECT_EQ(plan.groups.size(),
            16u * 9u);  // per stage: one group per part, and one group of all parts for the norms
}

}  // namespace
}  // namespace optimus
