// Decisions after ranks are lost, and the host's side of them over a board in memory.
#include "elastic/emergency_checkpoint.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "base/temporary_folder.h"
#include "elastic/emergency_checkpoint_host.h"
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
Plan plan_for(int devices, int tp, int zero, int copy_distance = 0) {
  UniformPlan shape{.microbatch = 1, .batch = devices, .sequence_length = 8};
  shape.dp = devices / tp, shape.strategy.tp = tp, shape.strategy.zero = zero;
  Plan plan = uniform_plan(little_model(), shape);
  plan.copy_distance = copy_distance;
  return plan;
}

Layout layout_for(int devices, int tp, int zero, int copy_distance = 0) {
  return layout_with_copies(plan_for(devices, tp, zero, copy_distance), little_model(), StateKind::optimizer);
}

SurvivorState at_step(int rank, std::int64_t step) {
  SurvivorState survivor_state{.rank = rank};
  survivor_state.state.step = step, survivor_state.gate = {1, 2, 3, static_cast<double>(step)};
  return survivor_state;
}

SurvivorState at_gate_of(int rank, std::int64_t step) {
  SurvivorState survivor_state = at_step(rank, step - 1);
  survivor_state.is_at_gate = true;
  return survivor_state;
}

TEST(EmergencyCheckpoint, ReplicasCoverLostRank) {
  const EmergencyCheckpointPlan plan =
      plan_emergency_checkpoint(layout_for(3, 1, 0), {at_step(0, 41), at_step(2, 41)});
  EXPECT_TRUE(plan.is_whole());
  EXPECT_EQ(plan.step, 41);
  EXPECT_EQ(plan.ranks, (std::vector<int>{0, 2}));
}

TEST(EmergencyCheckpoint, RedundantCopiesCoverLostRank) {
  for (const int zero : {1, 2, 3}) {
    EXPECT_FALSE(
        plan_emergency_checkpoint(layout_for(4, 1, zero), {at_step(0, 41), at_step(2, 41), at_step(3, 41)})
            .is_whole());
    const Layout layout = layout_for(4, 1, zero, 1);  // rank 2 has a copy of rank 1's state
    EXPECT_TRUE(
        plan_emergency_checkpoint(layout, {at_step(0, 41), at_step(2, 41), at_step(3, 41)}).is_whole());
    EXPECT_TRUE(plan_emergency_checkpoint(layout, {at_step(0, 41), at_step(2, 41)}).is_whole());
    EXPECT_FALSE(plan_emergency_checkpoint(layout, {at_step(0, 41), at_step(3, 41)}).is_whole());
  }
}

TEST(EmergencyCheckpoint, RankAtGateCatchesUp) {
  const EmergencyCheckpointPlan plan =
      plan_emergency_checkpoint(layout_for(4, 2, 0), {at_gate_of(3, 41), at_step(0, 41)});
  EXPECT_TRUE(plan.is_whole());
  EXPECT_EQ(plan.step, 41);
  EXPECT_EQ(plan.ranks, (std::vector<int>{0, 3}));
  EXPECT_EQ(plan.gate, (std::vector<double>{1, 2, 3, 41}));
}

TEST(EmergencyCheckpoint, NoRankPassedTheGate) {
  const EmergencyCheckpointPlan plan =
      plan_emergency_checkpoint(layout_for(2, 1, 0), {at_gate_of(0, 41), at_gate_of(1, 41)});
  EXPECT_TRUE(plan.is_whole());
  EXPECT_EQ(plan.step, 40);
}

TEST(EmergencyCheckpoint, StepsAreNotMixed) {
  // Rank 1 has the other half and is a step behind without gradients.
  const EmergencyCheckpointPlan plan =
      plan_emergency_checkpoint(layout_for(2, 2, 0), {at_step(0, 41), at_step(1, 40)});
  EXPECT_FALSE(plan.is_whole());
  EXPECT_EQ(plan.ranks, std::vector<int>{0});
  EXPECT_EQ(plan.outdated_ranks, std::vector<int>{1});
  SurvivorState without_gate = at_step(0, 41);
  without_gate.gate.clear();
  EXPECT_FALSE(plan_emergency_checkpoint(layout_for(2, 2, 0), {without_gate, at_gate_of(1, 41)}).is_whole());
  SurvivorState torn = at_step(1, 41);
  torn.is_torn = true;
  EXPECT_FALSE(plan_emergency_checkpoint(layout_for(2, 2, 0), {at_step(0, 41), torn}).is_whole());
}

TEST(EmergencyCheckpoint, LostBoxesAreNamed) {
  const Layout layout = layout_for(2, 2, 0);
  const EmergencyCheckpointPlan plan = plan_emergency_checkpoint(layout, {at_step(0, 5)});
  ASSERT_GT(plan.lost.size(), 2U);
  const std::string said = lost_text(layout, plan.lost);
  EXPECT_NE(said.find("embedding.words.weight [10:20, 0:16], "), std::string::npos) << said;
  EXPECT_NE(said.find(fmt::format(" and {} more", plan.lost.size() - 2)), std::string::npos) << said;
  EXPECT_FALSE(plan_emergency_checkpoint(layout, {}).is_whole());
}

TEST(EmergencyCheckpoint, IgnoresUnknownRanks) {
  const EmergencyCheckpointPlan plan = plan_emergency_checkpoint(
      layout_for(2, 2, 0), {at_step(0, 5), at_step(0, 5), at_step(1, 5), at_step(1 << 19, 5)});
  EXPECT_TRUE(plan.is_whole());
  EXPECT_EQ(plan.ranks, (std::vector<int>{0, 1}));
}

// Whatever ranks report, the stored state belongs to one step, is stored by ranks that have it or can catch
// up, and contains every box once; otherwise nothing is stored.
TEST(EmergencyCheckpoint, AnyReportsGiveConsistentPlan) {
  EXPECT_TRUE(rc::check([] {
    const int tp = *rc::gen::element(1, 2, 4), zero = tp == 4 ? 0 : *rc::gen::inRange(0, 4);
    const Layout layout = layout_for(4, tp, zero, zero > 0 ? *rc::gen::inRange(0, 2) : 0);
    std::vector<SurvivorState> survivor_states;
    for (int rank = 0; rank < 4; ++rank) {
      if (*rc::gen::inRange(0, 4) == 0) continue;
      SurvivorState survivor_state = at_step(rank, *rc::gen::inRange(40, 43));
      survivor_state.is_at_gate = *rc::gen::arbitrary<bool>(),
      survivor_state.is_torn = *rc::gen::inRange(0, 8) == 0;
      survivor_states.push_back(survivor_state);
    }
    const EmergencyCheckpointPlan plan = plan_emergency_checkpoint(layout, survivor_states);
    std::vector<bool> is_there(4);
    for (const int rank : plan.ranks) {
      is_there[static_cast<std::size_t>(rank)] = true;
      const auto found = std::find_if(survivor_states.begin(), survivor_states.end(),
                                      [&](const SurvivorState& s) { return s.rank == rank; });
      RC_ASSERT(!found->is_torn);
      RC_ASSERT(found->state.step == plan.step || (found->state.step + 1 == plan.step && found->is_at_gate));
    }
    if (!plan.is_whole()) return;
    std::int64_t stored = 0, all = 0;
    for (const auto& boxes : boxes_to_save(layout, is_there).boxes)
      for (const TensorBox& held : boxes) stored += held.box.num_elements();
    for (const TensorInfo& tensor : layout.tensors) all += tensor.shape.num_elements();
    RC_ASSERT(stored == all);
  }));
}

TEST(EmergencyCheckpoint, TextsSurviveRoundTrip) {
  SurvivorState survivor_state = at_gate_of(3, 8);
  survivor_state.gate = {1.0 / 3, std::numeric_limits<double>::infinity(), -0.0, 1e-300},
  survivor_state.missing = {1, 2};
  survivor_state.state.num_updates = 7, survivor_state.state.loss_scale = {0.5, 3};
  const SurvivorState again = parse_survivor_state(text(survivor_state));
  EXPECT_EQ(text(again), text(survivor_state));
  EXPECT_EQ(again.gate, survivor_state.gate);
  EXPECT_EQ(again.state, survivor_state.state);
  const EmergencyCheckpointOrder order{8, {0, 3}, survivor_state.gate, "/run/checkpoints/step-8.tmp-1"};
  EXPECT_EQ(text(parse_emergency_checkpoint_order(text(order))), text(order));
  const EmergencyCheckpointPart part{"", survivor_state.state, R"({"step":8})"};
  EXPECT_EQ(text(parse_emergency_checkpoint_part(text(part))), text(part));
  for (const char* wrong : {"", "{}", "[]", "{\"rank\": -1}", "nonsense"}) {
    EXPECT_THROW(parse_survivor_state(wrong), UserError);
    EXPECT_THROW(parse_emergency_checkpoint_order(wrong), UserError);
    EXPECT_THROW(parse_emergency_checkpoint_part(wrong), UserError);
  }
}

struct EmergencyCheckpointHostTest : testing::Test {
  EmergencyCheckpointHostTest() { std::filesystem::create_directories(run); }
  EmergencyCheckpointHost host(const Plan& plan) {
    save_plan(files, run, plan, 0);
    return EmergencyCheckpointHost(board, files,
                                   {.run = run,
                                    .model = little_model(),
                                    .report_timeout = Seconds(0.3),
                                    .late_grace = Seconds(0.05),
                                    .write_timeout = Seconds(0.3)});
  }
  void say(const SurvivorState& survivor_state) {
    ASSERT_TRUE(board.set(RecoveryKeys{}.survivor_state(survivor_state.rank), text(survivor_state)));
    ASSERT_TRUE(board.set(RecoveryKeys{}.first_report(), ""));
  }
  std::optional<EmergencyCheckpointOrder> order() {
    const auto said = *board.find(RecoveryKeys{}.order());
    return said ? std::optional(parse_emergency_checkpoint_order(*said)) : std::nullopt;
  }
  // Polls until nothing is in progress, and returns how long that took.
  double run_out(EmergencyCheckpointHost& emergency_checkpoint, const std::vector<bool>& is_gone) {
    const auto begin_time = Deadline::Clock::now();
    while (emergency_checkpoint.poll(is_gone)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
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

TEST_F(EmergencyCheckpointHostTest, NothingHappensWithoutReports) {
  EmergencyCheckpointHost emergency_checkpoint = host(plan_for(2, 1, 0));
  EXPECT_FALSE(emergency_checkpoint.poll({false, true}));
  EXPECT_EQ(emergency_checkpoint.finish(), "");
}

TEST_F(EmergencyCheckpointHostTest, WaitsForRanksThatMayReport) {
  EmergencyCheckpointHost emergency_checkpoint = host(plan_for(3, 1, 0));
  say(at_step(0, 4));
  EXPECT_TRUE(emergency_checkpoint.poll({false, true, false}));
  EXPECT_FALSE(order());  // rank 2 runs, and no rank has reported it missing
  say(at_step(2, 4));
  EXPECT_TRUE(emergency_checkpoint.poll({false, true, false}));
  ASSERT_TRUE(order());
  EXPECT_EQ(order()->ranks, (std::vector<int>{0, 2}));
}

TEST_F(EmergencyCheckpointHostTest, DoesNotWaitLongForMissingRanks) {
  EmergencyCheckpointHost emergency_checkpoint = host(plan_for(2, 1, 0));
  SurvivorState survivor_state = at_step(0, 4);
  survivor_state.missing = {1};
  say(survivor_state);
  const auto begin_time = Deadline::Clock::now();
  while (!order() && emergency_checkpoint.poll({false, false})) {
  }
  EXPECT_LT(std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count(), 0.2);
  EXPECT_EQ(order()->ranks, std::vector<int>{0});
}

TEST_F(EmergencyCheckpointHostTest, ReportsLostState) {
  EmergencyCheckpointHost emergency_checkpoint = host(plan_for(2, 2, 0));
  say(at_step(0, 4));
  EXPECT_FALSE(emergency_checkpoint.poll({false, true}));
  EXPECT_TRUE(order()->ranks.empty());
  const std::string line = emergency_checkpoint.finish();
  EXPECT_NE(line.find("; state lost with the ranks: embedding.words.weight [10:20, 0:16], "),
            std::string::npos)
      << line;
  EXPECT_NE(line.find("; there is no checkpoint yet"), std::string::npos) << line;
}

TEST_F(EmergencyCheckpointHostTest, SecondLossLeavesNoPartialCheckpoint) {
  for (const bool is_silent : {false, true}) {  // it died, or it does not report in time
    MemoryBoard own;
    save_plan(files, run, plan_for(3, 1, 0), 0);
    EmergencyCheckpointHost emergency_checkpoint(
        own, files,
        {.run = run, .model = little_model(), .report_timeout = Seconds(0.3), .write_timeout = Seconds(0.1)});
    ASSERT_TRUE(own.set(RecoveryKeys{}.survivor_state(0), text(at_step(0, 4))));
    ASSERT_TRUE(own.set(RecoveryKeys{}.survivor_state(1), text(at_step(1, 4))));
    ASSERT_TRUE(own.set(RecoveryKeys{}.first_report(), ""));
    EXPECT_TRUE(emergency_checkpoint.poll({false, false, true}));
    EXPECT_EQ(left().size(), 1U);
    EXPECT_LT(run_out(emergency_checkpoint, {false, !is_silent, true}), 1);
    const std::string line = emergency_checkpoint.finish();
    EXPECT_NE(line.find("; step 4 could not be saved: rank "), std::string::npos) << line;
    EXPECT_TRUE(left().empty());
  }
}

TEST_F(EmergencyCheckpointHostTest, InvalidReportsAreIgnored) {
  EmergencyCheckpointHost emergency_checkpoint = host(plan_for(2, 2, 0));
  ASSERT_TRUE(board.set(RecoveryKeys{}.survivor_state(0), "{\"rank\": 0"));
  ASSERT_TRUE(board.set(RecoveryKeys{}.first_report(), ""));
  EXPECT_LT(run_out(emergency_checkpoint, {false, true}), 1);
  EXPECT_TRUE(order()->ranks.empty());
}

}  // namespace
}  // namespace optimus::test
