// Which ranks the host of a run considers lost, according to heartbeats. Without ranks.
#include "launch/run_host.h"

#include <gtest/gtest.h>

#include "base/temporary_folder.h"
#include "elastic/heartbeat.h"
#include "plan/random_plan.h"
#include "run/memory_board.h"

namespace optimus::test {
namespace {

constexpr Seconds kSilence{0.8};

struct RunHostTest : testing::Test {
  RunHostTest() {
    MembershipCoordinator::Inputs coordinator{
        .model = model, .run = folder.path(), .interim_planner_inputs = {}};
    const Plan plan = uniform_plan(model, {.dp = 2, .batch = 4, .sequence_length = 16});
    coordinator.interim_planner_inputs.choose = [plan](int) { return plan; };
    host = std::make_unique<RunHost>(
        board, files,
        RunHostOptions{.coordinator = coordinator,
                       .emergency_checkpoint = {.run = folder.path(), .model = model},
                       .workers = {{0, 1, "a", "cpu", {}}, {1, 2, "b", "cpu", {}}},
                       .plan = plan,
                       .silence = kSilence});
  }

  void send_heartbeat(int worker_id, std::int64_t step) {
    ASSERT_TRUE(board.set(heartbeat_key(worker_id), text(Heartbeat{.number = ++number, .step = step})));
  }
  bool is_somebody_lost() { return board.find(RecoveryKeys{0}.first_report())->has_value(); }
  // Repeats an action every 20 ms for a given time, until a rank is lost. Returns how long that took;
  // nullopt: none was lost.
  std::optional<double> lost_after(Seconds time, const std::function<void(int)>& what) {
    const auto begin_time = Deadline::Clock::now();
    const auto passed = [&] {
      return std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count();
    };
    for (int i = 0; passed() < time.value; ++i) {
      if (is_somebody_lost()) return passed();
      what(i);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return std::nullopt;
  }

  const TemporaryFolder folder;
  const ModelSpec model = small_model(2, true);
  RealFileSystem files;
  MemoryBoard board;
  std::int64_t number = 0;
  std::unique_ptr<RunHost> host;
};

TEST_F(RunHostTest, SilentRankIsLostWithoutProgress) {
  send_heartbeat(0, 5), send_heartbeat(1, 5);
  const auto after = lost_after(Seconds(10), [&](int) { send_heartbeat(0, 5); });
  ASSERT_TRUE(after.has_value());
  EXPECT_GE(*after, kSilence.value);
}

// Its heartbeats are lost on the network; the steps of the others show that it participates. When these stop,
// it is lost as soon as any other rank.
TEST_F(RunHostTest, NoRankIsLostWhileTrainingAdvances) {
  send_heartbeat(0, 5), send_heartbeat(1, 5);
  EXPECT_EQ(lost_after(Seconds(4 * kSilence.value), [&](int i) { send_heartbeat(0, 6 + i / 5); }),
            std::nullopt);
  const auto begin_time = Deadline::Clock::now();
  send_heartbeat(0, 3);  // back at a checkpoint, without further progress
  ASSERT_TRUE(lost_after(Seconds(10), [&](int) { send_heartbeat(0, 3); }).has_value());
  EXPECT_GE(std::chrono::duration<double>(Deadline::Clock::now() - begin_time).count(), kSilence.value);
}

TEST(Heartbeat, SurvivesRoundTrip) {
  const auto heartbeat = parse_heartbeat(text(Heartbeat{7, 41, 0.25, "forward of block 3 has taken 9 s"}));
  ASSERT_TRUE(heartbeat.has_value());
  EXPECT_EQ(heartbeat->number, 7);
  EXPECT_EQ(heartbeat->step, 41);
  EXPECT_EQ(heartbeat->waiting, 0.25);
  EXPECT_EQ(heartbeat->hang_description, "forward of block 3 has taken 9 s");
  for (const char* const text : {"", "7", "7 ", "7 41", "7 41 ", "7 41 0.25", "x 41 0.25 ", "7 x 0.25 "})
    EXPECT_FALSE(parse_heartbeat(text).has_value()) << text;
}

}  // namespace
}  // namespace optimus::test
