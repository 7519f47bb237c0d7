// Decisions after ranks are lost, and the host's side of them over a board in memory.
#include "elastic/salvage.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "base/temporary_folder.h"
#include "elastic/salvage_host.h"
#include "model/presets.h"
#include "plan/layouts.h"
#include "run/memory_board.h"
#include "rundir/plan_files.h"

namespace optimus::test {
namespace {

ModelSpec little_model() {
  ModelSpec model = *find_preset("gpt2");
  model.layers = 2, model.hidden = 16, model.heads = model.kv_heads = 2, model.head_dim = 8, model.ffn = 32;
  model.vocab = 20, model.max_positions = 8;
  return model;
}

// A layout for this number of devices, tp of them per model copy.
Plan plan_for(int devices, int tp, int zero, int buddy = 0) {
  UniformPlan shape{.microbatch = 1, .batch = devices, .sequence_length = 8};
  shape.dp = devices / tp, shape.strategy.tp = tp, shape.strategy.zero = zero;
  Plan plan = uniform_plan(little_model(), shape);
  plan.buddy = buddy;
  return plan;
}

Layout layout_for(int devices, int tp, int zero, int buddy = 0) {
  return layout_with_buddies(plan_for(devices, tp, zero, buddy), little_model(), StateKind::optimizer);
}

Standing at_step(int rank, std::int64_t step) {
  Standing standing{.rank = rank};
  standing.state.step = step, standing.gate = {1, 2, 3, static_cast<double>(step)};
  return standing;
}

Standing at_gate_of(int rank, std::int64_t step) {
  Standing standing = at_step(rank, step - 1);
  standing.is_at_gate = true;
  return standing;
}

TEST(Salvage, CopiesCoverALostRank) {
  const SalvagePlan plan = plan_salvage(layout_for(3, 1, 0), {at_step(0, 41), at_step(2, 41)});
  EXPECT_TRUE(plan.is_whole());
  EXPECT_EQ(plan.step, 41);
  EXPECT_EQ(plan.ranks, (std::vector<int>{0, 2}));
}

TEST(Salvage, BuddiesCoverALostRank) {
  for (const int zero : {1, 2, 3}) {
    EXPECT_FALSE(
        plan_salvage(layout_for(4, 1, zero), {at_step(0, 41), at_step(2, 41), at_step(3, 41)}).is_whole());
    const Layout layout = layout_for(4, 1, zero, 1);  // rank 2 has a copy of rank 1's state
    EXPECT_TRUE(plan_salvage(layout, {at_step(0, 41), at_step(2, 41), at_step(3, 41)}).is_whole());
    EXPECT_TRUE(plan_salvage(layout, {at_step(0, 41), at_step(2, 41)}).is_whole());
    EXPECT_FALSE(plan_salvage(layout, {at_step(0, 41), at_step(3, 41)}).is_whole());
  }
}

TEST(Salvage, WhoStandsAtTheGateFollows) {
  const SalvagePlan plan = plan_salvage(layout_for(4, 2, 0), {at_gate_of(3, 41), at_step(0, 41)});
  EXPECT_TRUE(plan.is_whole());
  EXPECT_EQ(plan.step, 41);
  EXPECT_EQ(plan.ranks, (std::vector<int>{0, 3}));
  EXPECT_EQ(plan.gate, (std::vector<double>{1, 2, 3, 41}));
}

TEST(Salvage, NobodyPassedTheGate) {
  const SalvagePlan plan = plan_salvage(layout_for(2, 1, 0), {at_gate_of(0, 41), at_gate_of(1, 41)});
  EXPECT_TRUE(plan.is_whole());
  EXPECT_EQ(plan.step, 40);
}

TEST(Salvage, StepsAreNotMixed) {
  // Rank 1 has the other half and is a step behind without gradients.
  const SalvagePlan plan = plan_salvage(layout_for(2, 2, 0), {at_step(0, 41), at_step(1, 40)});
  EXPECT_FALSE(plan.is_whole());
  EXPECT_EQ(plan.ranks, std::vector<int>{0});
  EXPECT_EQ(plan.left_over, std::vector<int>{1});
  Standing without_gate = at_step(0, 41);
  without_gate.gate.clear();
  EXPECT_FALSE(plan_salvage(layout_for(2, 2, 0), {without_gate, at_gate_of(1, 41)}).is_whole());
  Standing torn = at_step(1, 41);
  torn.is_torn = true;
  EXPECT_FALSE(plan_salvage(layout_for(2, 2, 0), {at_step(0, 41), torn}).is_whole());
}

TEST(Salvage, LostBoxesAreNamed) {
  const Layout layout = layout_for(2, 2, 0);
  const SalvagePlan plan = plan_salvage(layout, {at_step(0, 5)});
  ASSERT_GT(plan.lost.size(), 2U);
  const std::string said = lost_text(layout, plan.lost);
  EXPECT_NE(said.find("embedding.words.weight [10:20, 0:16], "), std::string::npos) << said;
  EXPECT_NE(said.find(fmt::format(" and {} more", plan.lost.size() - 2)), std::string::npos) << said;
  EXPECT_FALSE(plan_salvage(layout, {}).is_whole());
}

TEST(Salvage, StrangeRanksArePassedOver) {
  const SalvagePlan plan =
      plan_salvage(layout_for(2, 2, 0), {at_step(0, 5), at_step(0, 5), at_step(1, 5), at_step(1 << 19, 5)});
  EXPECT_TRUE(plan.is_whole());
  EXPECT_EQ(plan.ranks, (std::vector<int>{0, 1}));
}

// Whatever ranks report, the stored state belongs to one step, is stored by ranks that have it or can catch
// up, and contains every box once; otherwise nothing is stored.
TEST(Salvage, AnyStandings) {
  EXPECT_TRUE(rc::check([] {
    const int tp = *rc::gen::element(1, 2, 4), zero = tp == 4 ? 0 : *rc::gen::inRange(0, 4);
    const Layout layout = layout_for(4, tp, zero, zero > 0 ? *rc::gen::inRange(0, 2) : 0);
    std::vector<Standing> standings;
    for (int rank = 0; rank < 4; ++rank) {
      if (*rc::gen::inRange(0, 4) == 0) continue;
      Standing standing = at_step(rank, *rc::gen::inRange(40, 43));
      standing.is_at_gate = *rc::gen::arbitrary<bool>(), standing.is_torn = *rc::gen::inRange(0, 8) == 0;
      standings.push_back(standing);
    }
    const SalvagePlan plan = plan_salvage(layout, standings);
    std::vector<bool> is_there(4);
    for (const int rank : plan.ranks) {
      is_there[static_cast<std::size_t>(rank)] = true;
      const auto found =
          std::find_if(standings.begin(), standings.end(), [&](const Standing& s) { return s.rank == rank; });
      RC_ASSERT(!found->is_torn);
      RC_ASSERT(found->state.step == plan.step || (found->state.step + 1 == plan.step && found->is_at_gate));
    }
    if (!plan.is_whole()) return;
    std::int64_t stored = 0, all = 0;
    for (const auto& boxes : boxes_to_store(layout, is_there).boxes)
      for (const HeldBox& held : boxes) stored += held.box.num_elements();
    for (const TensorInfo& tensor : layout.tensors) all += tensor.shape.num_elements();
    RC_ASSERT(stored == all);
  }));
}

TEST(Salvage, TextsComeBack) {
  Standing standing = at_gate_of(3, 8);
  standing.gate = {1.0 / 3, std::numeric_limits<double>::infinity(), -0.0, 1e-300}, standing.missing = {1, 2};
  standing.state.num_updates = 7, standing.state.loss_scale = {0.5, 3};
  const Standing again = parse_standing(text(standing));
  EXPECT_EQ(text(again), text(standing));
  EXPECT_EQ(again.gate, standing.gate);
  EXPECT_EQ(again.state, standing.state);
  const SalvageOrder order{8, {0, 3}, standing.gate, "/run/checkpoints/step-8.tmp-1"};
  EXPECT_EQ(text(parse_salvage_order(text(order))), text(order));
  const SalvagePart part{"", standing.state, R"({"step":8})"};
  EXPECT_EQ(text(parse_salvage_part(text(part))), text(part));
  for (const char* wrong : {"", "{}", "[]", "{\"rank\": -1}", "nonsense"}) {
    EXPECT_THROW(parse_standing(wrong), UserError);
    EXPECT_THROW(parse_salvage_order(wrong), UserError);
    EXPECT_THROW(parse_salvage_part(wrong), UserError);
  }
}

struct SalvageHostTest : testing::Test {
  SalvageHostTest() { std::filesystem::create_directories(run); }
  SalvageHost host(const Plan& plan) {
    keep_plan(files, run, plan, 0);
    return SalvageHost(board, files,
                       {.run = run,
                        .model = little_model(),
                        .come = Seconds(0.3),
                        .settle = Seconds(0.05),
                        .write = Seconds(0.3)});
  }
  void say(const Standing& standing) {
    ASSERT_TRUE(board.set(SalvageKeys{}.standing(standing.rank), text(standing)));
    ASSERT_TRUE(board.set(SalvageKeys{}.somebody(), ""));
  }
  std::optional<SalvageOrder> order() {
    const auto said = *board.find(SalvageKeys{}.order());
    return said ? std::optional(parse_salvage_order(*said)) : std::nullopt;
  }
  // Polls until nothing is in progress, and returns how long that took.
  double run_out(SalvageHost& salvage, const std::vector<bool>& is_gone) {
    const auto began = Deadline::Clock::now();
    while (salvage.look(is_gone)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return std::chrono::duration<double>(Deadline::Clock::now() - began).count();
  }
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(run / kCheckpointsFolder, error))
      names.push_back(entry.path().filename());
    return names;
  }

  TemporaryFolder folder;
  const Path run = folder / "run";
  RealFileSystem files;
  MemoryBoard board;
};

TEST_F(SalvageHostTest, NothingHappensWhileNobodyStands) {
  SalvageHost salvage = host(plan_for(2, 1, 0));
  EXPECT_FALSE(salvage.look({false, true}));
  EXPECT_EQ(salvage.finish(), "");
}

TEST_F(SalvageHostTest, WaitsForThoseWhoMayCome) {
  SalvageHost salvage = host(plan_for(3, 1, 0));
  say(at_step(0, 4));
  EXPECT_TRUE(salvage.look({false, true, false}));
  EXPECT_FALSE(order());  // rank 2 runs, and no rank has reported it missing
  say(at_step(2, 4));
  EXPECT_TRUE(salvage.look({false, true, false}));
  ASSERT_TRUE(order());
  EXPECT_EQ(order()->ranks, (std::vector<int>{0, 2}));
}

TEST_F(SalvageHostTest, WhoIsMissedIsNotWaitedForLong) {
  SalvageHost salvage = host(plan_for(2, 1, 0));
  Standing standing = at_step(0, 4);
  standing.missing = {1};
  say(standing);
  const auto began = Deadline::Clock::now();
  while (!order() && salvage.look({false, false})) {
  }
  EXPECT_LT(std::chrono::duration<double>(Deadline::Clock::now() - began).count(), 0.2);
  EXPECT_EQ(order()->ranks, std::vector<int>{0});
}

TEST_F(SalvageHostTest, WhatIsLostIsTold) {
  SalvageHost salvage = host(plan_for(2, 2, 0));
  say(at_step(0, 4));
  EXPECT_FALSE(salvage.look({false, true}));
  EXPECT_TRUE(order()->ranks.empty());
  const std::string line = salvage.finish();
  EXPECT_NE(line.find("; lost with the ranks: embedding.words.weight [10:20, 0:16], "), std::string::npos)
      << line;
  EXPECT_NE(line.find("; there is no checkpoint yet"), std::string::npos) << line;
}

TEST_F(SalvageHostTest, ASecondDeathLeavesNothing) {
  for (const bool is_silent : {false, true}) {  // it died, or it does not report in time
    MemoryBoard own;
    keep_plan(files, run, plan_for(3, 1, 0), 0);
    SalvageHost salvage(own, files,
                        {.run = run, .model = little_model(), .come = Seconds(0.3), .write = Seconds(0.1)});
    ASSERT_TRUE(own.set(SalvageKeys{}.standing(0), text(at_step(0, 4))));
    ASSERT_TRUE(own.set(SalvageKeys{}.standing(1), text(at_step(1, 4))));
    ASSERT_TRUE(own.set(SalvageKeys{}.somebody(), ""));
    EXPECT_TRUE(salvage.look({false, false, true}));
    EXPECT_EQ(left().size(), 1U);
    EXPECT_LT(run_out(salvage, {false, !is_silent, true}), 1);
    const std::string line = salvage.finish();
    EXPECT_NE(line.find("; step 4 could not be saved: rank "), std::string::npos) << line;
    EXPECT_TRUE(left().empty());
  }
}

TEST_F(SalvageHostTest, GarbageOnTheBoardCountsAsSilence) {
  SalvageHost salvage = host(plan_for(2, 2, 0));
  ASSERT_TRUE(board.set(SalvageKeys{}.standing(0), "{\"rank\": 0"));
  ASSERT_TRUE(board.set(SalvageKeys{}.somebody(), ""));
  EXPECT_LT(run_out(salvage, {false, true}), 1);
  EXPECT_TRUE(order()->ranks.empty());
}

}  // namespace
}  // namespace optimus::test
