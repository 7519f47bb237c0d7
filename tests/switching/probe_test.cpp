#include "switching/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <thread>

#include "comm/thread_comm.h"

namespace optimus::test {
namespace {

TEST(Probe, PairsNodesWithDifferentPartnerEachRound) {
  for (int nodes = 2; nodes <= 40; ++nodes) {
    std::vector<std::set<int>> met(static_cast<std::size_t>(nodes));
    for (int round = 0; round < num_probe_rounds(nodes); ++round)
      for (int node = 0; node < nodes; ++node) {
        const std::optional<int> partner = probe_partner(node, round, nodes);
        if (!partner) continue;
        EXPECT_NE(*partner, node);
        EXPECT_EQ(probe_partner(*partner, round, nodes), node) << nodes << " nodes, round " << round;
        EXPECT_TRUE(met[static_cast<std::size_t>(node)].insert(*partner).second);
      }
    // Enough rounds that one or two slow partners do not hide a node's own speed.
    for (const std::set<int>& partners : met) EXPECT_GE(std::ssize(partners), std::min(nodes - 1, 3));
  }
  EXPECT_EQ(num_probe_rounds(1), 0);
  EXPECT_LE(num_probe_rounds(100'000), 19);
}

std::vector<ProbeResult> probe_all(int num_ranks, const std::vector<int>& node_of_rank,
                                   const ProbeRequest& look) {
  ThreadWorld world(num_ranks);
  std::vector<ProbeResult> result(static_cast<std::size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Comm> comm = world.comm(rank);
      const Group everyone{Role::world, {}};
      throw_if_failed(comm->connect(0, {&everyone, 1}, Deadline::after(Seconds(60), "a test")));
      // Only rank 0 knows the nodes of ranks.
      result[static_cast<std::size_t>(rank)] = probe(
          *comm, rank == 0 ? ProbeSettings{node_of_rank, look} : ProbeSettings(), at::kCPU, Seconds(60));
    });
  for (std::thread& thread : threads) thread.join();
  return result;
}

TEST(Probe, MeasuresEachNodeAndDevice) {
  const std::vector<ProbeResult> seen = probe_all(7, {0, 0, 1, 2, 2, 3, 4}, {.speeds = true, .ring = true});
  ASSERT_EQ(seen[0].network.size(), 5U);
  for (const double seconds : seen[0].network) EXPECT_GT(seconds, 0);
  ASSERT_EQ(seen[0].devices.size(), 7U);
  for (const double seconds : seen[0].devices) EXPECT_GT(seconds, 0);
  for (const double bytes : seen[0].bytes) EXPECT_GE(bytes, 1 << 17);
  EXPECT_GT(seen[0].ring_seconds, 0);
  EXPECT_GE(seen[0].ring_bytes, 1 << 18);
  for (const ProbeResult& one : seen) EXPECT_EQ(one, seen[0]);
}

TEST(Probe, OneNodeHasNoPartner) {
  const ProbeResult seen = probe_all(2, {0, 0}, {.speeds = true})[1];
  EXPECT_EQ(seen.network, std::vector<double>{0});
  EXPECT_EQ(seen.ring_seconds, 0) << "a ring probe was not requested";
}

TEST(Probe, MeasuresOnlyWhatIsRequested) {
  const ProbeResult messages = probe_all(5, {0, 1, 2, 3, 4}, {.messages = true})[3];
  EXPECT_EQ(std::count_if(messages.network.begin(), messages.network.end(), [](double s) { return s > 0; }),
            4)
      << "one pair per node, and one of five nodes has none";
  EXPECT_TRUE(messages.devices.empty());
  EXPECT_EQ(messages.ring_seconds, 0);
  const ProbeResult ring = probe_all(5, {0, 1, 2, 3, 4}, {.ring = true})[3];
  EXPECT_TRUE(ring.network.empty());
  EXPECT_GT(ring.ring_seconds, 0);
}

}  // namespace
}  // namespace optimus::test
