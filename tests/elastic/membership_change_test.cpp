// Ranks as threads that die at any operation, leave, and join: the training continues, with the results of a
// single device.
#include "elastic/membership_change.h"

#include <gtest/gtest.h>

#include <random>

#include "run/membership_world.h"

namespace optimus::test {
namespace {

TEST_F(MembershipChangeTest, OthersContinueAfterLoss) {
  Scenario scenario{.num_ranks = 4, .layout = {{"dp", 4}, {"zero", 0}}, .fates = std::vector<RankFate>(4)};
  scenario.fates[2].fault = {Fault::Kind::dies_before, 40};
  const Ran ran = train("dies", scenario);
  expect_equal_to_undisturbed(ran);
  EXPECT_EQ(ran.ends[2], "killed");
  for (const std::size_t worker_id : {0, 1, 3}) EXPECT_EQ(ran.ends[worker_id], "done");
  ASSERT_EQ(ran.decisions.size(), 1U);
  EXPECT_EQ(ran.decisions[0]["kind"], "recover");
  EXPECT_EQ(ran.decisions[0]["evidence"], "lost rank 2");
}

TEST_F(MembershipChangeTest, AnotherRankKeepsRecordsAfterLossOfRankZero) {
  Scenario scenario{.num_ranks = 3, .layout = {{"dp", 3}, {"zero", 0}}, .fates = std::vector<RankFate>(3)};
  scenario.fates[0].fault = {Fault::Kind::dies_after, 55};
  expect_equal_to_undisturbed(train("first", scenario));
}

// State that only lost ranks had cannot be recovered: the run rolls back to its newest checkpoint, and
// reports how far.
TEST_F(MembershipChangeTest, LostStateComesFromTheNewestCheckpoint) {
  Scenario scenario{.num_ranks = 3,
                    .layout = {{"dp", 3}, {"zero", 3}},
                    .fates = std::vector<RankFate>(3),
                    .save_every = "2",
                    .wants_copies = false};
  scenario.fates[1].fault = {Fault::Kind::dies_before, 100};
  const Ran ran = train("sharded", scenario);
  expect_equal_to_undisturbed(ran);
  ASSERT_EQ(ran.decisions.size(), 1U);
  EXPECT_GT(ran.decisions[0]["step"].get<int>(), 0);
  EXPECT_EQ(ran.decisions[0]["step"].get<int>() % 2, 0);
}

// Another rank dies before the remaining ones are connected, or after they have loaded the checkpoint's
// state.
TEST_F(MembershipChangeTest, KilledWhileOthersLoadCheckpoint) {
  for (const int connect : {0, 1, 2}) {
    Scenario scenario{.num_ranks = 4,
                      .layout = {{"dp", 4}, {"zero", 3}},
                      .fates = std::vector<RankFate>(4),
                      .save_every = "2",
                      .wants_copies = false};
    scenario.fates[1].fault = {Fault::Kind::dies_before, 100};
    scenario.fates[2].fault = {Fault::Kind::dies_connecting, connect};
    const Ran ran = train(fmt::format("again-{}", connect), scenario);
    SCOPED_TRACE(fmt::format("connect {}: {}", connect, fmt::join(ran.ends, ", ")));
    expect_equal_to_undisturbed(ran);
    EXPECT_EQ(ran.ends[2], connect < 2 ? "killed" : "done");
  }
}

TEST_F(MembershipChangeTest, RanksLeaveAndJoin) {
  Scenario scenario{.num_ranks = 3, .layout = {{"pp", 3}}, .fates = std::vector<RankFate>(5)};
  scenario.fates[1].leaves_after = 1;  // it has state that no other rank has, and sends it before it leaves
  scenario.fates[3].joins_after = 2, scenario.fates[4].joins_after = 2;
  const Ran ran = train("leave", scenario);
  expect_equal_to_undisturbed(ran);
  EXPECT_EQ(ran.ends[1], "left");
  for (const std::size_t worker_id : {0, 2, 3, 4}) EXPECT_EQ(ran.ends[worker_id], "done");
  std::string all;  // they may join one after the other, or together
  for (const Json& decision : ran.decisions) all += decision["evidence"].get<std::string>() + "; ";
  EXPECT_NE(all.find("rank 1 leaves"), std::string::npos) << all;
  EXPECT_NE(all.find("join"), std::string::npos) << all;
}

// A machine's preemption notice reaches its ranks one after the other: one rank has announced that it leaves
// before the others know of the notice.
TEST_F(MembershipChangeTest, AllRanksLeaveOneAfterAnother) {
  Scenario scenario{.num_ranks = 3, .layout = {{"pp", 3}}, .fates = std::vector<RankFate>(3)};
  scenario.fates[1].stays_for = 2;  // it is the only one to leave after step 3
  scenario.fates[0].stays_for = scenario.fates[2].stays_for = 3;
  const Ran ran = train("one by one", scenario);
  EXPECT_EQ(ran.ends[0], "interrupted");
  EXPECT_EQ(ran.ends[1], "left");
  EXPECT_EQ(ran.ends[2], "interrupted");
  ASSERT_EQ(ran.decisions.size(), 1U);
  EXPECT_EQ(ran.decisions[0]["kind"], "drain");
  const auto newest = newest_complete(folder_ / "one by one");
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step, std::ssize(ran.losses));
}

// A rank is drained while the machine of the others is reclaimed: no rank remains, so the run is saved and
// ends as if it was asked to.
TEST_F(MembershipChangeTest, RemainingRanksLeaveDuringDrain) {
  Scenario scenario{.num_ranks = 3, .layout = {{"pp", 3}}, .fates = std::vector<RankFate>(3), .drained = 1};
  scenario.fates[0].stays_for = scenario.fates[2].stays_for = 0;
  const Ran ran = train("drained", scenario);
  for (const std::size_t worker_id : {0, 1, 2}) EXPECT_EQ(ran.ends[worker_id], "interrupted");
  const auto newest = newest_complete(folder_ / "drained");
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step, std::ssize(ran.losses));
}

// Also if a rank has its part of the new plan and others have not: all ranks retain their old state until all
// have the new one.
TEST_F(MembershipChangeTest, KilledDuringAnyOperationOfPlanChange) {
  constexpr int kOperations =
      12;  // operations of a rank, from the agreement that begins the change to the steps after it
  int num_before = 0, num_behind = 0;
  for (int operation = 0; operation < kOperations; ++operation) {
    Scenario scenario{.num_ranks = 4, .layout = {{"dp", 4}, {"zero", 0}}, .fates = std::vector<RankFate>(4)};
    scenario.next_layout = {{"pp", 2}, {"dp", 2}, {"zero", 0}};
    if (operation % 2 == 1) std::swap(scenario.layout, scenario.next_layout);
    scenario.fates[static_cast<std::size_t>(operation % 4)].fault = {
        operation % 3 == 0 ? Fault::Kind::dies_after : Fault::Kind::dies_before, operation, "plan refusals"};
    const Ran ran = train(fmt::format("move-{}", operation), scenario);
    SCOPED_TRACE(fmt::format("operation {}: {}", operation, fmt::join(ran.ends, ", ")));
    expect_equal_to_undisturbed(ran);
    bool is_switched = false;
    for (const Json& decision : ran.decisions) {
      if (decision["kind"] == "switch") is_switched = true;
      if (decision["kind"] != "recover") continue;
      EXPECT_GE(decision["step"].get<std::int64_t>(), kSwitchStep) << "no step is lost";
      ++(is_switched ? num_behind : num_before);
    }
  }
  EXPECT_GT(num_before, kOperations / 3);
  EXPECT_EQ(num_before + num_behind, kOperations);
}

// A rank without a part in the plan counts no updates. If it gets a part and another rank dies before its
// first step, its survivor state must match that of the others.
TEST_F(MembershipChangeTest, RankWithoutPartReportsMatchingState) {
  bool is_behind = false;
  for (const int operation : {7, 9, 11, 13}) {
    Scenario scenario{
        .num_ranks = 3, .num_idle = 1, .layout = {{"dp", 2}, {"zero", 0}}, .fates = std::vector<RankFate>(3)};
    scenario.next_layout = {{"dp", 3}, {"zero", 0}};
    scenario.fates[0].fault = {Fault::Kind::dies_before, operation, "plan refusals"};
    const Ran ran = train(fmt::format("idle-{}", operation), scenario);
    SCOPED_TRACE(fmt::format("operation {}: {}", operation, fmt::join(ran.ends, ", ")));
    expect_equal_to_undisturbed(ran);
    std::string kinds;
    for (const Json& decision : ran.decisions)
      kinds += fmt::format("{} {}, ", decision["kind"].get<std::string>(), decision["step"].get<int>());
    is_behind |= kinds == fmt::format("switch {0}, recover {0}, ", kSwitchStep);
  }
  EXPECT_TRUE(is_behind);
}

// Any worker may die at any operation, also during a membership change, leave at any step, or join.
// OPTIMUS_STORY=15 repeats that scenario: thread timing differs each time.
TEST_F(MembershipChangeTest, RandomScenarios) {
  const char* const seed_text = std::getenv("OPTIMUS_SEED");
  const unsigned seed = seed_text != nullptr ? static_cast<unsigned>(std::atoi(seed_text)) : 1;
  const char* const only = std::getenv("OPTIMUS_STORY");
  const int num_stories = std::getenv("OPTIMUS_LONG") != nullptr ? 300 : 30;
  const std::vector<std::map<std::string, int>> layouts = {{},
                                                           {{"dp", 4}, {"zero", 0}},
                                                           {{"tp", 2}, {"pp", 1}, {"zero", 0}},
                                                           {{"pp", 2}, {"tp", 1}},
                                                           {{"dp", 4}, {"zero", 1}},
                                                           {{"dp", 4}, {"zero", 3}}};
  std::map<std::string, int> seen;  // events in all scenarios
  for (int number = 0; number < num_stories; ++number) {
    std::mt19937 random(seed * 1000U + static_cast<unsigned>(only != nullptr ? std::atoi(only) : number));
    const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    Scenario scenario{.num_ranks = 4, .layout = layouts[static_cast<std::size_t>(below(6))]};
    scenario.fates.resize(static_cast<std::size_t>(4 + below(4)));
    for (std::size_t i = 0; i < scenario.fates.size(); ++i) {
      RankFate& fate = scenario.fates[i];
      if (i >= 4) fate.joins_after = below(15);
      if (below(3) == 0 && i != 3)
        fate.fault = {below(2) == 0 ? Fault::Kind::dies_before : Fault::Kind::dies_after,
                      below(i < 4 ? 400 : 200)};
      if (below(5) == 0 && i != 3) fate.leaves_after = below(20);
    }
    scenario.save_every = below(2) == 0 ? "0" : "2";
    scenario.is_planner_late = below(2) == 0;
    const Ran ran = train(fmt::format("story-{}", number), scenario);
    SCOPED_TRACE(fmt::format("seed {} story {}: {}", seed, number, fmt::join(ran.ends, ", ")));
    expect_equal_to_undisturbed(ran);
    if (HasFailure())
      for (const Json& decision : ran.decisions) ADD_FAILURE() << decision.dump();
    for (const Json& decision : ran.decisions) {
      ++seen[decision["kind"].get<std::string>()];
      const std::string evidence = decision["evidence"].get<std::string>();
      for (const char* const answer : {"templates", "takes over"})
        if (evidence.find(answer) != std::string::npos) ++seen[answer];
    }
    std::filesystem::remove_all(folder_ / fmt::format("story-{}", number));
    if (HasFailure()) return;
  }
  if (only != nullptr) return;
  for (const char* const kind : {"recover", "drain", "join"}) EXPECT_GT(seen[kind], num_stories / 10) << kind;
  EXPECT_GT(seen["templates"] + seen["takes over"], 0);
  std::string counts;
  for (const auto& [kind, count] : seen) counts += fmt::format("{} {} ", count, kind);
  RecordProperty("seen", counts);
}

}  // namespace
}  // namespace optimus::test
