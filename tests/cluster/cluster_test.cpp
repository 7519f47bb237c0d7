// The location of devices and the links between them, compared with a list built device by device.
#include "cluster/cluster.h"

#include <gtest/gtest.h>

#include <chrono>

#include "base/error.h"
#include "cluster/device_map.h"
#include "cluster/open.h"
#include "cluster/random_profile.h"

namespace optimus {
namespace {

struct DeviceLocation {
  int group, node, domain;
};

// A slow but simple reference implementation.
std::vector<DeviceLocation> locations(const HardwareProfile& profile) {
  std::vector<DeviceLocation> result;
  int node = -1, domain = -1;
  for (std::size_t g = 0; g < profile.groups.size(); ++g)
    for (int i = 0; i < profile.groups[g].num_devices; ++i) {
      if (i % profile.groups[g].devices_per_node == 0) ++node;
      if (i % profile.groups[g].devices_per_domain == 0) ++domain;
      result.push_back({static_cast<int>(g), node, domain});
    }
  return result;
}

TEST(Cluster, LocatesEveryDevice) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const HardwareProfile profile = random_profile(seed);
    const Cluster cluster(profile);
    const auto expected = locations(profile);
    ASSERT_EQ(cluster.num_devices(), static_cast<int>(expected.size()));
    EXPECT_EQ(cluster.num_nodes(), expected.back().node + 1);
    EXPECT_EQ(cluster.num_domains(), expected.back().domain + 1);
    for (int i = 0; i < cluster.num_devices(); ++i) {
      const NodeGroup& group =
          profile.groups[static_cast<std::size_t>(expected[static_cast<std::size_t>(i)].group)];
      EXPECT_EQ(cluster.node_of({i}), expected[static_cast<std::size_t>(i)].node);
      EXPECT_EQ(cluster.domain_of({i}), expected[static_cast<std::size_t>(i)].domain);
      EXPECT_EQ(cluster.island_of({i}), group.island);
      EXPECT_EQ(cluster.type_of({i}), profile.types[static_cast<std::size_t>(group.type)]);
    }
  }
}

TEST(Cluster, LinksAreSymmetricAndMonotone) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const HardwareProfile profile = random_profile(seed);
    const Cluster cluster(profile);
    const auto location = locations(profile);
    for (int i = 0; i < cluster.num_devices(); ++i)
      for (int j = 0; j < cluster.num_devices(); j += 3) {
        const Link link = cluster.link({i}, {j}), back = cluster.link({j}, {i});
        const DeviceLocation &a = location[static_cast<std::size_t>(i)],
                             &b = location[static_cast<std::size_t>(j)];
        const LinkClass expected = i == j                                             ? LinkClass::same_device
                                   : a.domain == b.domain                             ? LinkClass::domain
                                   : a.node == b.node                                 ? LinkClass::node
                                   : cluster.island_of({i}) == cluster.island_of({j}) ? LinkClass::network
                                                                                      : LinkClass::islands;
        ASSERT_EQ(link.kind, expected);
        EXPECT_EQ(link.bytes_per_second, back.bytes_per_second);
        EXPECT_EQ(link.shared_bytes_per_second, back.shared_bytes_per_second);
        EXPECT_EQ(link.latency, back.latency);
        EXPECT_LE(link.shared_bytes_per_second, link.bytes_per_second);
        EXPECT_GT(link.shared_bytes_per_second, 0);
        EXPECT_LE(link.efficiency_of(Bytes(1000)), 1);
      }
  }
}

TEST(Cluster, NetworkSharesFollowNicsAndOversubscription) {
  HardwareProfile profile = open_cluster("a100x16").profile();
  profile.groups[0].network.nics_per_node = 4;
  profile.groups[0].network.oversubscription = 2;
  const Link link = Cluster(profile).link({0}, {8});
  EXPECT_EQ(link.kind, LinkClass::network);
  EXPECT_DOUBLE_EQ(link.bytes_per_second, 25e9);
  EXPECT_DOUBLE_EQ(link.shared_bytes_per_second, 25e9 * 4 / 8 / 2);
  EXPECT_DOUBLE_EQ(receive_bytes_per_second(Cluster(profile), 8).value_or(0), 25e9 * 4 / 2);
  EXPECT_EQ(receive_bytes_per_second(open_cluster("a100x8"), 8), std::nullopt);
}

TEST(Cluster, IslandsShareTheirLink) {
  HardwareProfile profile = open_cluster("a100x16+a100x8").profile();
  profile.groups[1].island = 1;
  EXPECT_THROW(Cluster{profile}, UserError);
  profile.island_links = {{0, 1, 1.25e9, Seconds(0.02)}};
  const Link link = Cluster(profile).link({3}, {20});
  EXPECT_EQ(link.kind, LinkClass::islands);
  EXPECT_DOUBLE_EQ(link.bytes_per_second, 1.25e9);
  EXPECT_DOUBLE_EQ(link.shared_bytes_per_second, 1.25e9 / 8);
  EXPECT_DOUBLE_EQ(link.latency.value, 0.02);
  EXPECT_DOUBLE_EQ(receive_bytes_per_second(Cluster(profile), 1).value_or(0),
                   Cluster(profile).link({0}, {8}).shared_bytes_per_second);
}

TEST(Cluster, SlowAndMissingDevices) {
  HardwareProfile profile = open_cluster("h100x16").profile();
  profile.speed_factors = {{3, 0.5}, {9, 0.25}};
  profile.missing_devices = {0, 15};
  const Cluster cluster(profile);
  EXPECT_EQ(cluster.num_devices(), 16);
  EXPECT_EQ(cluster.num_present(), 14);
  EXPECT_FALSE(cluster.is_present({15}));
  EXPECT_TRUE(cluster.is_present({1}));
  EXPECT_EQ(cluster.speed_of({9}), 0.25);
  EXPECT_EQ(cluster.speed_of({10}), 1);
  const DeviceMap map = DeviceMap::of_present(cluster);
  EXPECT_EQ(map.size(), 14);
  EXPECT_EQ(map[VirtualDevice{0}], Device{1});
  EXPECT_EQ(map.virtual_of(Device{14}), VirtualDevice{13});
  EXPECT_FALSE(map.virtual_of(Device{15}));
  EXPECT_NO_THROW(check(map, cluster));
  EXPECT_THROW(check(DeviceMap::identity(16), cluster), UserError);
  EXPECT_THROW(check(DeviceMap(std::vector<Device>{{99}}), cluster), UserError);
}

TEST(DeviceMap, IsInjective) {
  EXPECT_THROW(DeviceMap({{0}, {1}, {0}}), UserError);
  EXPECT_THROW(DeviceMap(std::vector<Device>{{-1}}), UserError);
  const DeviceMap map({{7}, {2}, {5}});
  EXPECT_EQ(map[VirtualDevice{1}], Device{2});
  EXPECT_EQ(map.virtual_of(Device{5}), VirtualDevice{2});
  EXPECT_EQ(DeviceMap::identity(3), DeviceMap({{0}, {1}, {2}}));
  EXPECT_EQ(DeviceMap().size(), 0);
}

double seconds_for(int devices) {
  const auto begin = std::chrono::steady_clock::now();
  const Cluster cluster = open_cluster(fmt::format("h100x{}", devices));
  const DeviceMap map = DeviceMap::of_present(cluster);
  double sum = 0;
  for (int i = 0; i < cluster.num_devices(); ++i)
    sum += cluster.link(map[VirtualDevice{i}], {static_cast<int>(i * 7919LL % devices)}).bytes_per_second;
  EXPECT_GT(sum, 0);
  EXPECT_EQ(cluster.num_nodes(), devices / 8);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// Measures opening, mapping and one link per device. With 16 times the devices the time must not grow 256
// times, as it would if pairs were examined. Takes the best of five runs, because other programs may run at
// the same time.
TEST(Cluster, ScalesLinearlyInDevices) {
  double few = 1e9, many = 1e9;
  for (int i = 0; i < 5; ++i)
    few = std::min(few, seconds_for(6400)), many = std::min(many, seconds_for(102400));
  EXPECT_LT(many, 100 * few);
}

TEST(Cluster, FormatsSummary) {
  EXPECT_EQ(text(open_cluster("h100x512+v100x32")),
            "h100x512+v100x32: 544 devices, 68 nodes, 1 island\n"
            "type     devices   nodes  domain     memory                peak  memory speed  fast link  "
            "network share  island\n"
            "h100         512  64 x 8       8  80.00 GiB  989.4 TFLOP/s bf16    3.352 TB/s   450 GB/s        "
            "50 GB/s       0\n"
            "v100-32       32   4 x 8       8  32.00 GiB    125 TFLOP/s fp16      900 GB/s   150 GB/s      "
            "6.25 GB/s       0\n");
}

}  // namespace
}  // namespace optimus
