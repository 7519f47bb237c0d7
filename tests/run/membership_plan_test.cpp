// The decisions about membership changes, tested without ranks.
#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "elastic/membership_coordinator.h"
#include "launch/store_file.h"
#include "plan/random_plan.h"
#include "reshard/control.h"
#include "run/memory_board.h"

namespace optimus::test {
namespace {

Plan stages(const ModelSpec& model, int pp) {
  UniformPlan plan{.pp = pp, .batch = 16, .sequence_length = 16};
  plan.microbatch = 1;
  return uniform_plan(model, plan);
}

SurvivorState survivor_state_at(int rank, std::int64_t epoch) {
  SurvivorState survivor_state;
  survivor_state.rank = rank, survivor_state.epoch = epoch, survivor_state.state.step = 7;
  return survivor_state;
}

struct Two {
  ModelSpec model = small_model(4, true);
  MembershipChangeInputs facts{.model = model,
                               .membership = {0, {0, 1}},
                               .num_staying = 2,
                               .plans = {{0, stages(model, 2)}, {1, stages(model, 1)}},
                               .joining_workers = {},
                               .lost = {},
                               .find_checkpoint = [] { return std::nullopt; },
                               .choose = [this](int, const auto&) { return stages(model, 1); }};
};

// Rank 1 has sent its stage away and has no part in the next plan, but rank 0 has not received it. Rank 1
// still has its old state.
TEST(PlanMembershipChange, SenderKeepsStateUntilMoveCompletes) {
  const Two two;
  SurvivorState given = survivor_state_at(1, 1);
  given.is_torn = true, given.is_leaving = true, given.earlier_epoch = 0;
  const auto order = plan_membership_change(two.facts, {survivor_state_at(0, 0), given});
  ASSERT_TRUE(order.has_value()) << order.error();
  EXPECT_EQ(order->source, MembershipChange::Source::live);
  EXPECT_EQ(order->epoch, 0);
  EXPECT_EQ(order->state.step, 7);
  EXPECT_EQ(order->num_steps_lost, 0);
  given.earlier_epoch = -1;
  const auto without = plan_membership_change(two.facts, {survivor_state_at(0, 0), given});
  ASSERT_TRUE(without.has_value()) << without.error();
  EXPECT_EQ(without->source, MembershipChange::Source::begin);
  EXPECT_EQ(without->num_steps_lost, 7);
}

// A rank is lost after step 7, where a phase begins. The others continue in the new phase, with the devices
// and layers chosen for the first one.
TEST(PlanMembershipChange, SurvivorsContinueInPhaseOfTheirStep) {
  Two two;
  two.facts.plans = {{0, stages(two.model, 1)}};
  const auto batch_behind = [&](std::vector<Phase> phases, const std::vector<std::int64_t>& begins) {
    two.facts.phases = std::move(phases);
    SurvivorState alone = survivor_state_at(0, 0);
    alone.state.phase_begins = begins;
    const auto order = plan_membership_change(two.facts, {alone});
    EXPECT_TRUE(order.has_value()) << order.error();
    EXPECT_EQ(order->description.find("; phase: batch 16 → 32") != std::string::npos, order->to.batch == 32);
    return order->to.batch;
  };
  EXPECT_EQ(batch_behind({{0, 16, 16}, {8, 32, 16}}, {}), 16);
  EXPECT_EQ(batch_behind({{0, 16, 16}, {7, 32, 16}}, {}), 32);
  EXPECT_EQ(batch_behind({{0, 16, 16}, {kUndecidedStep, 32, 16}}, {}), 16);
  EXPECT_EQ(batch_behind({{0, 16, 16}, {kUndecidedStep, 32, 16}}, {8}), 16);
  EXPECT_EQ(batch_behind({{0, 16, 16}, {kUndecidedStep, 32, 16}}, {7}), 32);
}

// Leaving ranks must not be lost before the others have their state.
TEST(PlanMembershipChange, WaitsForLeavingRanksUntilStateHasMoved) {
  const Two two;
  TemporaryFolder folder;
  MemoryBoard board;
  MembershipChange order;
  order.membership = {3, {1, 0}}, order.num_staying = 1, order.epoch = 4;
  order.from = stages(two.model, 2), order.to = stages(two.model, 1);
  const MembershipCoordinator coordinator(
      board, {.model = two.model, .run = folder.path(), .interim_planner_inputs = {}}, {}, order);
  EXPECT_TRUE(coordinator.needs_leaving_ranks({}));
  EXPECT_TRUE(coordinator.needs_leaving_ranks({survivor_state_at(0, 4)}));
  EXPECT_FALSE(coordinator.needs_leaving_ranks({survivor_state_at(0, 5)}));
}

// A former host removes its own store file, but not that of the next host. The process that wrote an order
// may be lost before all ranks have read it: the next host finds it in the run's folder.
TEST(MembershipChangeTest, OrderSurvivesLossOfItsHost) {
  const Two two;
  TemporaryFolder folder;
  MemoryBoard board, next_board;
  const std::vector<WorkerEntry> workers(3);
  const Plan plan = stages(two.model, 1);
  MembershipCoordinator::Inputs facts{.model = two.model, .run = folder.path(), .interim_planner_inputs = {}};
  facts.interim_planner_inputs.choose = [&](int) { return plan; };
  MembershipCoordinator maker(board, facts, workers, plan, 0), next(next_board, facts, workers, plan, 0),
      cut_off(next_board, facts, workers, plan, 0);
  EXPECT_FALSE(is_excluded(folder.path(), 1, 2));
  maker.record_lost(2, "rank 2");
  const auto order = maker.change_membership({survivor_state_at(0, 0), survivor_state_at(1, 0)});
  ASSERT_TRUE(order.has_value()) << order.error();
  const auto again = next.change_membership({survivor_state_at(1, 0)});
  ASSERT_TRUE(again.has_value()) << again.error();
  EXPECT_EQ(text(*again), text(*order));
  EXPECT_EQ(next.membership().worker_ids, maker.membership().worker_ids);
  EXPECT_FALSE(is_excluded(folder.path(), 1, 1));
  EXPECT_TRUE(is_excluded(folder.path(), 1, 2));
  EXPECT_FALSE(cut_off.change_membership({survivor_state_at(2, 0)}).has_value());
}

TEST(StoreFileTest, BelongsToLatestHost) {
  TemporaryFolder folder;
  folder.write("logs/some.log", "");
  const auto place = [](int port) { return RunStoreAddress{{.port = port, .token = "t"}, "run/", true}; };
  auto first = std::make_unique<StoreFile>(folder.path(), place(1111));
  auto second = std::make_unique<StoreFile>(folder.path(), place(2222));
  first.reset();
  ASSERT_TRUE(has_store_file(folder.path()));
  EXPECT_EQ(read_store_file(folder.path()).address.port, 2222);
  second->release();
  second.reset();
  EXPECT_TRUE(has_store_file(folder.path()));
  StoreFile(folder.path(), place(3333));
  EXPECT_FALSE(has_store_file(folder.path()));
}

// After a renumbering, an old rank number refers to another worker; plan requests do not name workers.
TEST(ControlFolderTest, RejectsDrainsByOldRankNumbers) {
  TemporaryFolder folder;
  const Path drain = folder.write("control/1-1.request", R"({"drain": 2})"
                                                         "\n");
  const Path plan = folder.write("control/1-2.request", R"({"plan": "auto"})"
                                                        "\n");
  ControlFolder control(folder.path());
  const Path taken = folder.write("control/1-0.request", R"({"drain": 0})"
                                                         "\n");
  EXPECT_TRUE(control.claim("1-0"));
  EXPECT_FALSE(control.claim("1-9"));  // withdrawn
  EXPECT_FALSE(std::filesystem::exists(taken));
  control.refuse_drains("new numbers", false);
  EXPECT_FALSE(std::filesystem::exists(folder / "control/1-0.answer"));  // answered by the rank that took it
  EXPECT_FALSE(std::filesystem::exists(drain));
  EXPECT_NE(value_or_throw(read_file(folder / "control/1-1.answer")).find("new numbers"), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(plan));
  const auto next = control.next();
  ASSERT_TRUE(next.has_value());
  EXPECT_TRUE(std::holds_alternative<SwitchRequest>(*next));
  control.refuse_drains("new numbers", true);
  EXPECT_TRUE(std::filesystem::exists(folder / "control/1-0.answer"));
}

}  // namespace
}  // namespace optimus::test
