// Tasks of a run's host besides its decisions: hosts of ranks, their memory, and waiting for the larger
// partition. Without ranks.
#include "elastic/regrouping.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/temporary_folder.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/save.h"
#include "elastic/host_memory.h"
#include "elastic/pulse.h"
#include "elastic/salvage_host.h"
#include "plan/random_plan.h"
#include "run/memory_board.h"

namespace optimus::test {
namespace {

struct HostsTest : testing::Test {
  HostsTest() {
    std::filesystem::create_directories(run);
    std::filesystem::create_directories(folder / "shared");
  }
  Plan plan(int dp, int zero, int buddy) const {
    UniformPlan shape{.dp = dp, .batch = 16, .sequence_length = 16};
    shape.strategy.zero = zero;
    Plan result = uniform_plan(model, shape);
    result.buddy = buddy;
    return result;
  }
  Regrouping regrouping(const std::vector<std::string>& hosts, const Plan& now, const Plan& next) {
    std::vector<WorkerEntry> workers;
    for (const std::string& host : hosts) workers.push_back({0, 1, host, "cpu", {}});
    Regrouping::Facts facts{.model = model, .run = run, .answers = {}};
    facts.answers.choose = [next](int) { return next; };
    return Regrouping(board, std::move(facts), workers, now, 0);
  }
  static std::vector<Standing> standings(const std::vector<int>& ranks, std::int64_t step) {
    std::vector<Standing> result;
    for (const int rank : ranks) {
      Standing standing;
      standing.rank = rank, standing.state.step = step;
      result.push_back(standing);
    }
    return result;
  }

  TemporaryFolder folder;
  const Path run = folder / "run";
  const ModelSpec model = small_model(4, true);
  RealFileSystem files;
  MemoryBoard board;
};

TEST_F(HostsTest, CopiesOfShardsAreOnOtherHosts) {
  Regrouping host = regrouping({"a", "a", "b", "b", "c"}, plan(5, 0, 0), plan(4, 2, 1));
  const auto order = host.regroup(standings({0, 1, 2, 3}, 7));
  ASSERT_TRUE(order.has_value()) << order.error();
  EXPECT_EQ(order->to.buddy, 2);
}

// A joining worker's host keeps its number if it is known, or gets the next one.
TEST_F(HostsTest, MemoryKnowsWhereComersAre) {
  announce_host_memory(files, run, folder / "shared", {0, 0, 1});
  Regrouping host = regrouping({"a", "a", "b"}, plan(3, 0, 0), plan(5, 0, 0));
  (void)board.set(JoinKeys{1}.comer(), text(Comer{1, "c", "cpu"}));
  (void)board.set(JoinKeys{2}.comer(), text(Comer{1, "b", "cpu"}));
  host.look(), host.look();
  ASSERT_TRUE(host.regroup(standings({0, 1, 2}, 7)).has_value());
  EXPECT_EQ(find_host_memory(run)->host_of, (std::vector<int>{0, 0, 1, 2, 1}));
}

// Worker 4 has joined and was lost before another process hosts the run: the next joining worker gets the
// next id.
TEST_F(HostsTest, SeatsAreTakenOnce) {
  announce_host_memory(files, run, folder / "shared", {0, 0, 1, 2, 1});
  RegroupOrder order;
  order.membership = {3, {0, 1, 2}}, order.num_staying = 3, order.num_seats = 5;
  order.from = order.to = plan(3, 0, 0);
  EXPECT_EQ(parse_regroup_order(text(order)).num_seats, 5);
  Regrouping::Facts facts{.model = model, .run = run, .answers = {}};
  facts.answers.choose = [&](int size) { return plan(size, 0, 0); };
  const std::vector<WorkerEntry> known = {
      {0, 1, "a", "cpu", {}}, {1, 1, "a", "cpu", {}}, {2, 1, "b", "cpu", {}}};
  Regrouping next(board, std::move(facts), known, order);
  (void)board.set(JoinKeys{1}.comer(), text(Comer{1, "b", "cpu"}));
  next.look();
  const auto after = next.regroup(standings({0, 1, 2}, 7));
  ASSERT_TRUE(after.has_value()) << after.error();
  EXPECT_EQ(after->membership.seats, (std::vector<int>{0, 1, 2, 5}));
  EXPECT_EQ(after->num_seats, 6);
  EXPECT_EQ(find_host_memory(run)->host_of, (std::vector<int>{0, 0, 1, 2, 1, 1}));
}

// Rank 1 is lost with its shard. Step 6 is in the memory of rank 0's host, which provides it when asked.
TEST_F(HostsTest, WhatHostsHaveInMemoryIsAskedFor) {
  const HostMemory memory = announce_host_memory(files, run, folder / "shared", {0, 1});
  make_memory_folder(memory);
  const Path step = memory.step_folder(0, 6);
  value_or_throw(files.create_folders(step));
  const std::vector<float> values(4, 1.0F);
  for (const int writer : {0, 1}) {
    const StatePiece piece{.field = StateField::master,
                           .tensor = fmt::format("weight{}", writer),
                           .shape = {4},
                           .box = Box(Shape{4}),
                           .type = ElementType::f32,
                           .values = std::as_bytes(std::span(values))};
    value_or_throw(write_shards(files, step, Rank{writer}, {&piece, 1}));
  }
  TrainingState state;
  state.step = 6;
  value_or_throw(
      write_step_files(files, step, {{std::string(kTrainingStateFile), training_state_text(state)}}, 2));
  Regrouping host = regrouping({"a", "b"}, plan(2, 1, 0), plan(1, 0, 0));
  std::thread rank_0([&] {
    while (!*board.find(SalvageKeys{0}.bring())) std::this_thread::yield();
    bring_host_memory(run);
    (void)board.set(SalvageKeys{0}.brought(0), "");
  });
  const auto order = host.regroup(standings({0}, 9));
  rank_0.join();
  ASSERT_TRUE(order.has_value()) << order.error();
  EXPECT_EQ(order->source, RegroupOrder::Source::checkpoint);
  EXPECT_EQ(order->state.step, 6);
  EXPECT_EQ(order->num_steps_lost, 3);
  ASSERT_TRUE(newest_whole(run).has_value());
  EXPECT_EQ(newest_whole(run)->step, 6);
}

// Three of four ranks continue at once; two may be an isolated partition, unless the others are known to have
// ended.
TEST_F(HostsTest, HalfOfARunWaitsForTheOther) {
  for (const auto& [num_standing, have_ended] :
       {std::pair(3, false), std::pair(2, false), std::pair(2, true)}) {
    const Path own_run = folder / fmt::format("{}-{}", num_standing, have_ended);
    MemoryBoard own;
    std::vector<WorkerEntry> workers(4);
    Regrouping::Facts facts{.model = model, .run = own_run, .answers = {}};
    facts.answers.choose = [&](int size) { return plan(size, 0, 0); };
    Regrouping host(own, std::move(facts), workers, plan(4, 0, 0), 0);
    SalvageFacts salvage{.run = own_run, .model = model};
    salvage.regrouping = &host, salvage.may_be_cut_off = true;
    salvage.cut = Seconds(0.5);
    SalvageHost side(own, files, std::move(salvage));
    std::vector<bool> is_gone(4);
    for (int rank = num_standing; rank < 4; ++rank) {
      is_gone[static_cast<std::size_t>(rank)] = true;
      (void)own.set(gone_key(rank), have_ended ? kEnded : "");
    }
    for (int rank = 0; rank < num_standing; ++rank)
      (void)own.set(SalvageKeys{0}.standing(rank), text(standings({rank}, 7).front()));
    (void)own.set(SalvageKeys{0}.somebody(), "");
    side.look(is_gone);
    EXPECT_EQ(host.membership().generation, num_standing == 3 || have_ended ? 1 : 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    side.look(is_gone);
    EXPECT_EQ(host.membership().generation, 1) << num_standing;
  }
}

}  // namespace
}  // namespace optimus::test
