#include "switching/observation_tree.h"

#include <gtest/gtest.h>

#include <thread>

#include "comm/thread_comm.h"

namespace optimus::test {
namespace {

Observation seen_by(int rank, std::int64_t step, int num_groups) {
  RankStep rank_step{.rank = rank, .group = rank % num_groups, .seconds = 1.0 + rank};
  rank_step.kinds[static_cast<std::size_t>(WorkKind::forward)] = {1, 0.5 + static_cast<double>(step) + rank,
                                                                  0};
  Observation seen{.step = step};
  seen.add(rank_step);
  return seen;
}

// Every third step is collected; the result at rank 0 equals the observation of all ranks merged directly.
void collect(int num_ranks, int num_collected, int num_groups = 3) {
  ThreadWorld world(num_ranks);
  std::vector<Observation> collected;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < num_ranks; ++rank)
    threads.emplace_back([&, rank] {
      const std::unique_ptr<Comm> comm = world.comm(rank);
      const Group everyone{Role::world, {}};
      throw_if_failed(comm->connect(0, {&everyone, 1}, Deadline::after(Seconds(60), "a test")));
      ObservationTree tree(*comm, Seconds(60));
      for (int step = 1; step <= 3 * num_collected; ++step) {
        tree.receive();
        if (step % 3 != 0) continue;
        if (auto seen = tree.send(seen_by(rank, step, num_groups))) collected.push_back(std::move(*seen));
      }
      tree.receive();
    });
  for (std::thread& thread : threads) thread.join();
  int depth = 0;
  for (int rank = num_ranks - 1; rank > 0; rank = (rank - 1) / 8) ++depth;
  ASSERT_EQ(std::ssize(collected), num_collected - depth);
  for (std::size_t i = 0; i < collected.size(); ++i) {
    const std::int64_t step = 3 * (static_cast<std::int64_t>(i) + 1);
    Observation expected = seen_by(0, step, num_groups);
    for (int rank = 1; rank < num_ranks; ++rank) expected.merge(seen_by(rank, step, num_groups));
    EXPECT_EQ(collected[i].step, step);
    EXPECT_EQ(collected[i].num_ranks, num_ranks);
    for (const auto& [group, of_all] : expected.groups) {
      const Spread &ours = collected[i].groups.at(group).of(Measure::compute),
                   &theirs = of_all.of(Measure::compute);
      EXPECT_EQ(ours.largest, theirs.largest);
      EXPECT_EQ(ours.buckets, theirs.buckets);
      EXPECT_NEAR(ours.sum, theirs.sum, 1e-12 * theirs.sum) << "summed in another order";
    }
  }
}

TEST(ObservationTree, OneRankSeesItself) { collect(1, 4); }
TEST(ObservationTree, AllRanksOfOneLevel) { collect(9, 5); }
TEST(ObservationTree, LeavesOfDifferentDepth) { collect(10, 5); }
TEST(ObservationTree, ThreeLevels) { collect(75, 6); }

// One stage for each rank: the merged texts of inner ranks need more than one message.
TEST(ObservationTree, LongTexts) {
  Observation several = seen_by(0, 1, 20);
  for (int rank = 1; rank < 9; ++rank) several.merge(seen_by(rank, 1, 20));
  ASSERT_GT(to_json(several).dump().size(), 4096u);
  collect(20, 5, 20);
}

}  // namespace
}  // namespace optimus::test
