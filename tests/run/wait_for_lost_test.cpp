// Whether a run waits for a lost worker to return, or continues without it.
#include <gtest/gtest.h>

#include <thread>

#include "base/temporary_folder.h"
#include "elastic/regrouping.h"
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
  Regrouping regrouping(double recovery_seconds) {
    Regrouping::Facts facts{.model = model_, .run = folder_.path(), .answers = {.choose = [this](int size) {
                                                                      return copies(size);
                                                                    }}};
    facts.costs.recovery_seconds = recovery_seconds;
    facts.costs.join_bytes = recovery_seconds * facts.costs.link_bytes_per_second;
    return Regrouping(board_, facts, std::vector<WorkerEntry>(4), copies(4), 0);
  }
  std::vector<Standing> standings(int count, std::int64_t epoch) const {
    std::vector<Standing> result(static_cast<std::size_t>(count));
    for (int rank = 0; rank < count; ++rank)
      result[static_cast<std::size_t>(rank)].rank = rank,
      result[static_cast<std::size_t>(rank)].epoch = epoch;
    return result;
  }
  void come(std::int64_t number) { (void)board_.set(JoinKeys{number}.comer(), text(Comer{1, "a", "cpu"})); }
  // A dozen times: one worker is lost, and one joins.
  std::int64_t some_short_outages(Regrouping& regrouping) {
    std::int64_t epoch = 0;
    for (int time = 1; time <= 12; ++time) {
      EXPECT_TRUE(regrouping.regroup(standings(3, epoch++)));
      come(time);
      regrouping.look();
      EXPECT_TRUE(regrouping.regroup(standings(3, epoch++)));
    }
    return epoch;
  }
  const ModelSpec model_ = small_model(2, false);
  TemporaryFolder folder_;
  MemoryBoard board_;
};

TEST_F(WaitForLost, NeverWhenGoingOnIsQuick) {
  Regrouping quick = regrouping(0.4);
  EXPECT_FALSE(quick.waits_for_lost(standings(3, 0)));
  EXPECT_FALSE(quick.waits_for_lost(standings(4, 0)));
}

TEST_F(WaitForLost, WhenOutagesAreShorterThanGoingOn) {
  Regrouping slow = regrouping(20);
  const std::int64_t epoch = some_short_outages(slow);
  EXPECT_FALSE(slow.waits_for_lost(standings(4, epoch)));
  EXPECT_TRUE(slow.waits_for_lost(standings(3, epoch)));
  come(13);
  slow.look();
  EXPECT_FALSE(slow.waits_for_lost(standings(3, epoch)));  // it has joined
}

// No rank is on the plan of the generation that ends: the state still lies as before, also on a rank that was
// lost when the generation began.
TEST_F(WaitForLost, AnotherIsLostBeforeTheOthersHaveMoved) {
  Regrouping regroup = regrouping(0.4);
  ASSERT_TRUE(regroup.regroup(standings(3, 0)));
  const auto order = regroup.regroup(standings(2, 0));
  ASSERT_TRUE(order) << order.error();
  EXPECT_EQ(order->source, RegroupOrder::Source::live);
  EXPECT_EQ(order->num_staying, 2);
  EXPECT_EQ(num_devices(order->to), 2);
}

}  // namespace
}  // namespace optimus::test
