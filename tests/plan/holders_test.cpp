// What has to be lost together for state to be lost: devices, and hosts.
#include <gtest/gtest.h>

#include "plan/layouts.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

Plan plan_of(int pp, int dp, int tp, int zero, int buddy) {
  UniformPlan shape{.pp = pp, .dp = dp, .batch = 16, .sequence_length = 8};
  shape.strategy.tp = tp, shape.strategy.zero = zero;
  Plan plan = uniform_plan(small_model(4, false), shape);
  plan.buddy = buddy;
  return plan;
}

std::size_t num_hosts_to_lose(const Plan& plan, const std::vector<int>& host_of) {
  return fewest_domains(plan, host_of).size();
}

TEST(Holders, Hosts) {
  const std::vector<int> two_and_two = {0, 0, 1, 1}, turns = {0, 1, 0, 1};
  EXPECT_EQ(num_hosts_to_lose(plan_of(1, 4, 1, 0, 0), two_and_two), 2U);  // copies everywhere
  EXPECT_EQ(num_hosts_to_lose(plan_of(1, 4, 1, 3, 0), two_and_two), 1U);  // every shard once
  // Buddies: the neighbour is on the same host for some shards; two further on it never is.
  EXPECT_EQ(num_hosts_to_lose(plan_of(1, 4, 1, 3, 1), two_and_two), 1U);
  EXPECT_EQ(num_hosts_to_lose(plan_of(1, 4, 1, 3, 2), two_and_two), 2U);
  EXPECT_EQ(num_hosts_to_lose(plan_of(1, 4, 1, 3, 1), turns), 2U);
  // Two replicas of two tensor parts: each part's copies are on both hosts, or on one.
  EXPECT_EQ(num_hosts_to_lose(plan_of(1, 2, 2, 0, 0), two_and_two), 2U);
  EXPECT_EQ(num_hosts_to_lose(plan_of(1, 2, 2, 0, 0), turns), 1U);
  EXPECT_EQ(num_hosts_to_lose(plan_of(4, 1, 1, 0, 0), two_and_two), 1U);
}

// One device a host: as devices.
TEST(Holders, HostsOfOneDeviceAreDevices) {
  for (const Plan& plan :
       {plan_of(1, 4, 1, 0, 0), plan_of(2, 2, 1, 0, 0), plan_of(1, 4, 1, 3, 1), plan_of(1, 2, 2, 0, 0)})
    EXPECT_EQ(num_hosts_to_lose(plan, {0, 1, 2, 3}), fewest_holders(plan).size());
}

}  // namespace
}  // namespace optimus
