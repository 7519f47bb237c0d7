// Hosts as threads over a store on the loopback interface; the lab measures real links
// (tests/lab/scenarios/links.toml).
#include "launch/measure_links.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "base/error.h"
#include "cluster/cluster.h"
#include "cluster/standard.h"
#include "store/socket.h"
#include "store/store_server.h"

namespace optimus {
namespace {

TEST(LinkRounds, PairsAreDisjointAndReachEveryHost) {
  for (int hosts = 1; hosts <= 40; ++hosts) {
    std::set<int> reached = {0};
    int pairs = 0;
    for (int round = 0; round < num_link_rounds(hosts); ++round)
      for (int host = 0; host < hosts; ++host) {
        const auto partner = partner_in_round(host, round, hosts);
        if (!partner) continue;
        EXPECT_NE(*partner, host);
        EXPECT_EQ(partner_in_round(*partner, round, hosts), host);
        reached.insert(host), ++pairs;
      }
    EXPECT_EQ(std::ssize(reached), hosts);
    EXPECT_LE(pairs, hosts * num_link_rounds(hosts));
  }
  EXPECT_EQ(num_link_rounds(10'000), 14);
}

TEST(LinkFromMessages, IgnoresBurstCredits) {
  // 100 MB/s, 50 us, and the first 64 KiB of a message at no cost.
  std::vector<MessageTime> times;
  for (const double bytes : {1.0, 1024.0, 131072.0, 1048576.0, 4194304.0})
    times.push_back({bytes, 50e-6 + std::max(0.0, bytes - 65536) / 100e6});
  const LinkSpec link = link_from_messages(times);
  EXPECT_NEAR(link.bytes_per_second, 100e6, 1);
  EXPECT_DOUBLE_EQ(link.latency.value, 50e-6);
  double before = 0;
  for (const auto& [bytes, part] : link.efficiency.points) {
    EXPECT_GE(part, before);
    EXPECT_LE(part, 1);
    before = part;
  }
}

PairTimes pair_of(int first, int second, double bytes_per_second) {
  return {first, second, {{1, 1e-5}, {1e6, 1e6 / bytes_per_second}, {2e6, 2e6 / bytes_per_second}}, ""};
}

TEST(ClusterFromPairs, SlowHostFormsItsOwnGroup) {
  const HardwareProfile node = standard_cluster("cpux2");
  // Hosts 0, 1, 3 are fast, 2 is slow: 2 is paired with 3 and 0, 1 with 0 and 3.
  const std::vector<PairTimes> pairs = {pair_of(0, 1, 1e8), pair_of(2, 3, 1e7), pair_of(0, 2, 1e7),
                                        pair_of(1, 3, 1.05e8)};
  const std::vector<ProbedHost> hosts = {{"a", 2}, {"b", 2}, {"c", 2}, {"d", 2}};
  const Cluster cluster(cluster_from_pairs(node, hosts, pairs));
  EXPECT_EQ(cluster.num_devices(), 8);
  EXPECT_EQ(cluster.num_nodes(), 4);
  EXPECT_EQ(cluster.profile().groups.size(), 3U);
  EXPECT_NEAR(cluster.link(Device{0}, Device{2}).bytes_per_second, 1e8, 1e3);
  EXPECT_NEAR(cluster.link(Device{0}, Device{4}).bytes_per_second, 1e7, 1e3);
  EXPECT_EQ(cluster.link(Device{0}, Device{1}).kind, LinkClass::domain);
}

TEST(ClusterFromPairs, NamesUnreachableHost) {
  const std::vector<ProbedHost> hosts = {{"a", 1}, {"b", 1}, {"c", 1}};
  try {
    cluster_from_pairs(standard_cluster("cpux2"), hosts, {pair_of(0, 1, 1e8), {0, 2, {}, "no route"}});
    FAIL();
  } catch (const RuntimeFailure& error) {
    EXPECT_STREQ(error.what(), "no link of host c could be measured: no route");
  }
}

struct HostsOnLoopback {
  StoreServer server{{.token = "a-token-of-this-test"}};
  std::unique_ptr<KeyStore> store() {
    return value_or_throw(open_store({.port = server.port(), .token = "a-token-of-this-test"},
                                     Deadline::after(Seconds(5), "test")));
  }
  LinkMeasurement measurement(KeyStore& store, int host, int num_hosts) {
    return {.store = store,
            .prefix = "test/",
            .secret = "secret",
            .host = host,
            .num_hosts = num_hosts,
            .address = "127.0.0.1",
            .pair_budget = Seconds(0.2),
            .partner_timeout = Seconds(1)};
  }
};

// silent: a host that never comes.
std::vector<PairTimes> measured_pairs(int num_hosts, int silent) {
  HostsOnLoopback hosts;
  std::vector<std::jthread> others;
  for (int host = 1; host < num_hosts; ++host)
    if (host != silent)
      others.emplace_back([&, host] {
        const auto store = hosts.store();
        measure_own_links(hosts.measurement(*store, host, num_hosts));
      });
  const auto store = hosts.store();
  const LinkMeasurement measurement = hosts.measurement(*store, 0, num_hosts);
  measure_own_links(measurement);
  return collect_pairs(measurement, Deadline::after(Seconds(2), "test"));
}

TEST(MeasureLinks, HostsMeasureTheirPairs) {
  for (const int hosts : {2, 3, 4}) {
    const std::vector<PairTimes> pairs = measured_pairs(hosts, -1);
    EXPECT_EQ(pairs.size(), hosts == 4 ? 4U : hosts == 3 ? 2U : 1U);
    for (const PairTimes& pair : pairs) {
      ASSERT_GE(pair.times.size(), 2U) << pair.why;
      EXPECT_GT(link_from_messages(pair.times).bytes_per_second, 1e6);
    }
  }
}

TEST(MeasureLinks, RecordsMissingHost) {
  const std::vector<PairTimes> pairs = measured_pairs(3, 2);
  ASSERT_EQ(pairs.size(), 2U);
  EXPECT_GE(pairs[0].times.size(), 2U);
  EXPECT_TRUE(pairs[1].times.empty());
  EXPECT_NE(pairs[1].why, "");
}

TEST(MeasureLinks, RejectsConnectionsWithoutSecret) {
  HostsOnLoopback hosts;
  const auto store = hosts.store();
  std::jthread other([&] {
    const auto own = hosts.store();
    LinkMeasurement measurement = hosts.measurement(*own, 1, 2);
    measurement.partner_timeout = Seconds(5);
    measure_own_links(measurement);
  });
  const Deadline deadline = Deadline::after(Seconds(5), "test");
  const std::string place = value_or_throw(wait_for_key(*store, "test/links/at/0/1", deadline, [] {}));
  const auto [host, port] = parse_host_port(place, "place");
  for (const std::string garbage : {"garbage garbage", "secre", ""}) {
    Socket stranger = value_or_throw(Socket::connect(host, port, deadline));
    (void)stranger.send(garbage, deadline);
  }
  const LinkMeasurement measurement = hosts.measurement(*store, 0, 2);
  measure_own_links(measurement);
  const std::vector<PairTimes> pairs = collect_pairs(measurement, deadline);
  ASSERT_EQ(pairs.size(), 1U);
  EXPECT_GE(pairs[0].times.size(), 2U) << pairs[0].why;
}

}  // namespace
}  // namespace optimus
