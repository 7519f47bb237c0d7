#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <numeric>
#include <set>

#include "cluster/standard.h"
#include "cost/instruction_cost.h"
#include "model/presets.h"

namespace optimus {
namespace {

TEST(Software, NamesAreUnique) {
  std::set<std::string_view> names;
  for (const Software& software : all_software())
    EXPECT_TRUE(names.insert(software.name).second) << software.name;
  EXPECT_LE(names.size(), 13u);  // twelve other programs and Optimus
  EXPECT_EQ(find_software("megatron"), nullptr);
}

TEST(Constants, AreWithinBounds) {
  const Constants prior, &fitted = fitted_constants();
  std::set<std::string_view> names;
  for (const ConstantRow& row : constant_rows()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_LE(row.min_value, prior.*row.member) << row.name;
    EXPECT_GE(row.max_value, prior.*row.member) << row.name;
    EXPECT_LE(row.min_value, fitted.*row.member) << row.name;
    EXPECT_GE(row.max_value, fitted.*row.member) << row.name;
  }
  EXPECT_LE(names.size(), 60u);
}

class Devices : public ::testing::TestWithParam<const char*> {};

TEST_P(Devices, NeverFasterThanTheirPeak) {
  const DeviceType type = *find_device_type(GetParam());
  const Constants& constants = fitted_constants();
  EXPECT_TRUE(rc::check([&] {
    const DeviceCost cost(type, 1, optimus_software(), constants);
    const double rows = *rc::gen::inRange(1, 20000), inner = *rc::gen::inRange(1, 20000),
                 outer = *rc::gen::inRange(1, 20000);
    const double flops = 2 * rows * inner * outer;
    const double peak = std::max({type.peak.bf16, type.peak.fp16, type.peak.fp32});
    const double seconds = cost.gemm_seconds(rows, inner, outer, {NumberFormat::bf16});
    RC_ASSERT(seconds >= flops / peak);
    // Twice the rows take longer if the GEMM is large enough to fill a device.
    if (std::min({rows, inner, outer}) >= 2048)
      RC_ASSERT(cost.gemm_seconds(2 * rows, inner, outer, {NumberFormat::bf16}) > 1.2 * seconds);
    RC_ASSERT(cost.flash_seconds(flops, 128, true, NumberFormat::bf16) > flops / peak);
  }));
}
INSTANTIATE_TEST_SUITE_P(Cost, Devices,
                         ::testing::Values("v100", "a100", "h100", "h200", "b200", "gb300", "mi300x", "cpu"));

TEST(Device, SlowDevicesTakeLonger) {
  const DeviceType type = *find_device_type("a100");
  const Constants& constants = fitted_constants();
  const DeviceCost whole(type, 1, optimus_software(), constants),
      half(type, 0.5, optimus_software(), constants);
  EXPECT_NEAR(half.gemm_seconds(4096, 4096, 4096, {}) / whole.gemm_seconds(4096, 4096, 4096, {}), 2, 1e-9);
  EXPECT_NEAR(half.traffic_seconds(1e9) / whole.traffic_seconds(1e9), 2, 1e-9);
}

TEST(Links, GroupShapes) {
  const Cluster cluster{standard_cluster("h100x64")};
  const DeviceMap map = DeviceMap::identity(64);
  const std::vector<int> node = {0, 1, 2, 3, 4, 5, 6, 7}, column = {0, 8, 16, 24, 32, 40, 48, 56},
                         pair = {6, 7, 8, 9};
  EXPECT_EQ(shape_of(node, cluster, map).domains, 1);
  EXPECT_EQ(shape_of(node, cluster, map).inter_node.kind, LinkClass::same_device);
  EXPECT_EQ(shape_of(column, cluster, map).domains, 8);
  EXPECT_EQ(shape_of(column, cluster, map).nodes, 8);
  EXPECT_EQ(shape_of(pair, cluster, map).domains, 2);
  EXPECT_EQ(shape_of_all(64, cluster).nodes, 8);
}

TEST(Links, CollectivesObeyBounds) {
  const Cluster cluster{standard_cluster("h100x64")};
  const DeviceMap map = DeviceMap::identity(64);
  const LinkCost links(fitted_constants());
  EXPECT_TRUE(rc::check([&] {
    const int size = *rc::gen::inRange(1, 33), stride = *rc::gen::element(1, 2);
    std::vector<int> members;
    for (int i = 0; i < size; ++i) members.push_back(i * stride);
    const GroupShape shape = shape_of(members, cluster, map);
    const double bytes = 1.0 * *rc::gen::inRange(1, 1 << 30);
    const double gather = links.collective_seconds(Collective::gather, shape, bytes),
                 sum = links.collective_seconds(Collective::all_reduce, shape, bytes);
    if (size == 1) {
      RC_ASSERT(gather == 0);
      return;
    }
    // At best, every device receives all parts except its own over the fast link.
    RC_ASSERT(gather >= bytes * (size - 1) / size / shape.intra_node.bytes_per_second);
    // A reduction transfers every part twice; small ones use a tree, which has fewer steps than a ring.
    RC_ASSERT(sum >= 2 * bytes * (size - 1) / size / shape.intra_node.bytes_per_second);
    RC_ASSERT(sum <= 2 * gather * (1 + 1e-9));
    RC_ASSERT(links.collective_seconds(Collective::gather, shape, 2 * bytes) >= gather);
  }));
}

// Split work costs less per device; recompute costs a forward.
TEST(Instructions, CostsFollowPlan) {
  const ModelSpec model = *find_preset("gpt3-13b");
  const Cluster cluster{standard_cluster("a100x8")};
  const DeviceMap map = DeviceMap::identity(8);
  const ModelWork work = work_of(model, 2048);
  const auto compute_seconds = [&](int tp, RecomputeMode recompute) {
    UniformPlan shape{.pp = 1, .dp = 8 / tp, .microbatch = tp, .batch = 8, .sequence_length = 2048};
    shape.strategy.tp = tp, shape.strategy.recompute = recompute;
    const Plan plan = uniform_plan(model, shape);
    const optimus::Setup setup{plan, model, cluster, map, optimus_software(), {}};
    const PricedProgram program(setup, work, compile(plan, model, 0), Device{0});
    const std::vector<double> prices = program.price(fitted_constants());
    double sum = 0;
    for (std::size_t i = 0; i < prices.size(); ++i)
      if (const Instruction& at = program.program().instructions[i];
          at.lane == Lane::compute && at.op != Op::optimizer)
        sum += prices[i];
    return sum;
  };
  const double plain = compute_seconds(1, RecomputeMode::none);
  // Eight sequences on eight devices in both cases: the same work per device, slightly less efficient in
  // smaller pieces.
  EXPECT_NEAR(compute_seconds(2, RecomputeMode::none) / plain, 1, 0.25);
  // A forward is a third of a step. Its last GEMM, a third of its operations, is not recomputed: 2/9,
  // slightly less because the head is not recomputed, slightly more because of attention and memory traffic.
  const double again = compute_seconds(1, RecomputeMode::full) / plain;
  EXPECT_GT(again, 1.18);
  EXPECT_LT(again, 1.27);
}

TEST(Links, TokensAreSentToEachDomainOnce) {
  const Cluster cluster{standard_cluster("h100x64")};
  const DeviceMap map = DeviceMap::identity(64);
  const Constants& constants = fitted_constants();
  const LinkCost links(constants);
  const auto seconds = [&](int devices, double copies) {
    std::vector<int> members(static_cast<std::size_t>(devices));
    std::iota(members.begin(), members.end(), 0);
    return links.exchange_seconds(shape_of(members, cluster, map), 1e8, copies);
  };
  EXPECT_EQ(seconds(1, 8), 0);
  EXPECT_GT(seconds(16, 8), 1.5 * seconds(8, 8));  // across the network
  EXPECT_GT(seconds(64, 8), seconds(16, 8));
  // The same bytes with fewer copies: fewer copies share a transfer.
  EXPECT_GT(seconds(64, 1), 1.5 * seconds(64, 8));
  // Inside a domain every copy is sent.
  EXPECT_DOUBLE_EQ(seconds(8, 1), seconds(8, 8));
}

TEST(Device, SmallExpertsAreSlowerThanOneGemm) {
  const DeviceType type = *find_device_type("h100");
  const Constants& constants = fitted_constants();
  const DeviceCost cost(type, 1, optimus_software(), constants);
  const double one = cost.gemm_seconds(8192, 2048, 1536, {}),
               sixteen = cost.grouped_gemm_seconds(8192, 2048, 1536, 16, {});
  EXPECT_GT(sixteen, one);
  EXPECT_LT(sixteen, 2 * one);
  EXPECT_GT(cost.grouped_gemm_seconds(1000, 2048, 1536, 16, {}),
            cost.grouped_gemm_seconds(1024, 2048, 1536, 8, {}));
  EXPECT_EQ(cost.grouped_gemm_seconds(0, 2048, 1536, 16, {}), 0);
}

}  // namespace
}  // namespace optimus
