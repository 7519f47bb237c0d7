// The smallest sets of devices, and of hosts, whose joint loss loses state.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "plan/layouts.h"
#include "plan/random_plan.h"

namespace optimus {
namespace {

Plan plan_of(int pp, int dp, int tp, int zero, int copy_distance) {
  UniformPlan shape{.pp = pp, .dp = dp, .batch = 16, .sequence_length = 8};
  shape.strategy.tp = tp, shape.strategy.zero = zero;
  Plan plan = uniform_plan(small_model(4, false), shape);
  plan.copy_distance = copy_distance;
  return plan;
}

std::size_t num_hosts_whose_loss_loses_state(const Plan& plan, const std::vector<int>& host_of) {
  return smallest_domain_set(plan, host_of).size();
}

TEST(Holders, Hosts) {
  const std::vector<int> two_and_two = {0, 0, 1, 1}, turns = {0, 1, 0, 1};
  EXPECT_EQ(num_hosts_whose_loss_loses_state(plan_of(1, 4, 1, 0, 0), two_and_two), 2U);  // copies everywhere
  EXPECT_EQ(num_hosts_whose_loss_loses_state(plan_of(1, 4, 1, 3, 0), two_and_two),
            1U);  // one owner per shard
  // Shard copies: with distance 1, some copies are on the same host as their shard; with distance 2, none.
  EXPECT_EQ(num_hosts_whose_loss_loses_state(plan_of(1, 4, 1, 3, 1), two_and_two), 1U);
  EXPECT_EQ(num_hosts_whose_loss_loses_state(plan_of(1, 4, 1, 3, 2), two_and_two), 2U);
  EXPECT_EQ(num_hosts_whose_loss_loses_state(plan_of(1, 4, 1, 3, 1), turns), 2U);
  // Two replicas of two tensor parts: the copies of each part are on both hosts, or on one.
  EXPECT_EQ(num_hosts_whose_loss_loses_state(plan_of(1, 2, 2, 0, 0), two_and_two), 2U);
  EXPECT_EQ(num_hosts_whose_loss_loses_state(plan_of(1, 2, 2, 0, 0), turns), 1U);
  EXPECT_EQ(num_hosts_whose_loss_loses_state(plan_of(4, 1, 1, 0, 0), two_and_two), 1U);
}

// With one device per host, hosts behave like devices.
TEST(Holders, SingleDeviceHostsEqualDevices) {
  for (const Plan& plan :
       {plan_of(1, 4, 1, 0, 0), plan_of(2, 2, 1, 0, 0), plan_of(1, 4, 1, 3, 1), plan_of(1, 2, 2, 0, 0)})
    EXPECT_EQ(num_hosts_whose_loss_loses_state(plan, {0, 1, 2, 3}), smallest_owner_set(plan).size());
}

// No other distance leaves fewer copies in the failure domain of their original, and an optimal distance
// is not changed.
TEST(Holders, CopiesAreInOtherDomains) {
  const std::vector<int> two_and_two = {0, 0, 1, 1, 2, 2, 3, 3};
  EXPECT_EQ(with_copies_in_other_domains(plan_of(1, 8, 1, 2, 1), two_and_two).copy_distance, 2);
  EXPECT_EQ(with_copies_in_other_domains(plan_of(1, 8, 1, 2, 3), two_and_two).copy_distance, 3);
  EXPECT_EQ(with_copies_in_other_domains(plan_of(1, 4, 2, 2, 1), two_and_two).copy_distance,
            1);  // two tensor parts per host
  EXPECT_EQ(with_copies_in_other_domains(plan_of(2, 4, 1, 1, 1), two_and_two).copy_distance,
            2);  // shards of each stage
  EXPECT_EQ(with_copies_in_other_domains(plan_of(1, 8, 1, 2, 0), two_and_two).copy_distance,
            0);  // copies are disabled
  EXPECT_EQ(with_copies_in_other_domains(plan_of(1, 8, 1, 0, 1), two_and_two).copy_distance,
            1);  // nothing is sharded
  EXPECT_EQ(with_copies_in_other_domains(plan_of(1, 8, 1, 2, 1), std::vector<int>(8, 0)).copy_distance, 1);
}

RC_GTEST_PROP(Holders, ChosenDistanceIsOptimal, ()) {
  const int dp = *rc::gen::inRange(2, 9), tp = *rc::gen::element(1, 2), pp = *rc::gen::inRange(1, 3);
  const Plan plan = plan_of(pp, dp, tp, *rc::gen::inRange(1, 4), *rc::gen::inRange(1, dp));
  const auto hosts = *rc::gen::container<std::vector<int>>(static_cast<std::size_t>(num_devices(plan)),
                                                           rc::gen::inRange(0, 4));
  const auto num_lost_with_a_host = [&](const Plan& one) {
    int result = 0;
    for (const Stage& stage : one.pipelines.front().stages)
      for (int place = 0; place < dp * tp; ++place) {
        const auto host = [&](int at) {
          return hosts.at(static_cast<std::size_t>(stage.devices.at(static_cast<std::size_t>(at))));
        };
        result += host(place) == host((place + one.copy_distance * tp) % (dp * tp));
      }
    return result;
  };
  const int found = num_lost_with_a_host(with_copies_in_other_domains(plan, hosts));
  Plan other = plan;
  for (other.copy_distance = 1; other.copy_distance < dp; ++other.copy_distance)
    RC_ASSERT(found <= num_lost_with_a_host(other));
}

}  // namespace
}  // namespace optimus
