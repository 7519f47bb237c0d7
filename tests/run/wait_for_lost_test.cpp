// Whether a run waits for a lost worker to return, or continues without it.
#include <gtest/gtest.h>

#include <thread>

#include "base/temporary_folder.h"
#include "elastic/membership_coordinator.h"
#include "plan/random_plan.h"
#include "run/memory_board.h"

namespace optimus::test {
namespace {

// Four replicas of a model; worker 3 is lost and rejoins under another worker id, again and again within
// moments.
class WaitForLost : public testing::Test {
 protected:
  Plan copies(int size) const {
    UniformPlan shape{.dp = size, .batch = 12, .sequence_length = 8, .precision = Precision::fp64};
    return uniform_plan(model_, shape);
  }
  MembershipCoordinator coordinator(double recovery_seconds) {
    MembershipCoordinator::Inputs facts{
        .model = model_, .run = folder_.path(), .interim_planner_inputs = {.choose = [this](int size) {
                                                  return copies(size);
                                                }}};
    facts.costs.recovery_seconds = recovery_seconds;
    facts.costs.join_bytes = recovery_seconds * facts.costs.link_bytes_per_second;
    return MembershipCoordinator(board_, facts, std::vector<WorkerEntry>(4), copies(4), 0);
  }
  std::vector<SurvivorState> survivor_states(int count, std::int64_t epoch) const {
    std::vector<SurvivorState> result(static_cast<std::size_t>(count));
    for (int rank = 0; rank < count; ++rank)
      result[static_cast<std::size_t>(rank)].rank = rank,
      result[static_cast<std::size_t>(rank)].epoch = epoch;
    return result;
  }
  void come(std::int64_t number) {
    (void)board_.set(JoinKeys{number}.request(), text(WorkerJoinRequest{1, "a", "cpu"}));
  }
  // A dozen times: one worker is lost, and one joins.
  std::int64_t repeat_short_outages(MembershipCoordinator& coordinator) {
    std::int64_t epoch = 0;
    for (int time = 1; time <= 12; ++time) {
      EXPECT_TRUE(coordinator.change_membership(survivor_states(3, epoch++)));
      come(time);
      coordinator.poll();
      EXPECT_TRUE(coordinator.change_membership(survivor_states(3, epoch++)));
    }
    return epoch;
  }
  const ModelSpec model_ = small_model(2, false);
  TemporaryFolder folder_;
  MemoryBoard board_;
};

TEST_F(WaitForLost, ContinuesIfRecoveryIsFast) {
  MembershipCoordinator quick = coordinator(0.4);
  EXPECT_FALSE(quick.should_wait_for_lost(survivor_states(3, 0)));
  EXPECT_FALSE(quick.should_wait_for_lost(survivor_states(4, 0)));
}

TEST_F(WaitForLost, WaitsIfOutagesAreShorterThanRecovery) {
  MembershipCoordinator slow = coordinator(20);
  const std::int64_t epoch = repeat_short_outages(slow);
  EXPECT_FALSE(slow.should_wait_for_lost(survivor_states(4, epoch)));
  EXPECT_TRUE(slow.should_wait_for_lost(survivor_states(3, epoch)));
  come(13);
  slow.poll();
  EXPECT_FALSE(slow.should_wait_for_lost(survivor_states(3, epoch)));  // it has joined
}

// No rank is on the plan of the generation that ends: the state still lies as before, also on a rank that was
// lost when the generation began.
TEST_F(WaitForLost, SecondLossBeforeStateHasMoved) {
  MembershipCoordinator change_membership = coordinator(0.4);
  ASSERT_TRUE(change_membership.change_membership(survivor_states(3, 0)));
  const auto order = change_membership.change_membership(survivor_states(2, 0));
  ASSERT_TRUE(order) << order.error();
  EXPECT_EQ(order->source, MembershipChange::Source::live);
  EXPECT_EQ(order->num_staying, 2);
  EXPECT_EQ(num_devices(order->to), 2);
}

}  // namespace
}  // namespace optimus::test
