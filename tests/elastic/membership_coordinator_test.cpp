// Tasks of a run's host besides its decisions: hosts of ranks, their memory, and waiting for the larger
// partition. Without ranks.
#include "elastic/membership_coordinator.h"

#include <gtest/gtest.h>

#include <thread>

#include "base/temporary_folder.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/save.h"
#include "elastic/emergency_checkpoint_host.h"
#include "elastic/heartbeat.h"
#include "elastic/host_memory.h"
#include "plan/random_plan.h"
#include "run/memory_board.h"

namespace optimus::test {
namespace {

struct CoordinatorHostsTest : testing::Test {
  CoordinatorHostsTest() {
    std::filesystem::create_directories(run);
    std::filesystem::create_directories(folder / "shared");
  }
  Plan plan(int dp, int zero, int copy_distance) const {
    UniformPlan shape{.dp = dp, .batch = 16, .sequence_length = 16};
    shape.strategy.zero = zero;
    Plan result = uniform_plan(model, shape);
    result.copy_distance = copy_distance;
    return result;
  }
  MembershipCoordinator coordinator(const std::vector<std::string>& hosts, const Plan& now,
                                    const Plan& next) {
    std::vector<WorkerEntry> workers;
    for (const std::string& host : hosts) workers.push_back({0, 1, host, "cpu", {}});
    MembershipCoordinator::Inputs facts{.model = model, .run = run, .interim_planner_inputs = {}};
    facts.interim_planner_inputs.choose = [next](int) { return next; };
    return MembershipCoordinator(board, std::move(facts), workers, now, 0);
  }
  static std::vector<SurvivorState> survivor_states(const std::vector<int>& ranks, std::int64_t step) {
    std::vector<SurvivorState> result;
    for (const int rank : ranks) {
      SurvivorState survivor_state;
      survivor_state.rank = rank, survivor_state.state.step = step;
      result.push_back(survivor_state);
    }
    return result;
  }

  TemporaryFolder folder;
  const Path run = folder / "run";
  const ModelSpec model = small_model(4, true);
  RealFileSystem files;
  MemoryBoard board;
};

TEST_F(CoordinatorHostsTest, CopiesOfShardsAreOnOtherHosts) {
  MembershipCoordinator host = coordinator({"a", "a", "b", "b", "c"}, plan(5, 0, 0), plan(4, 2, 1));
  const auto order = host.change_membership(survivor_states({0, 1, 2, 3}, 7));
  ASSERT_TRUE(order.has_value()) << order.error();
  EXPECT_EQ(order->to.copy_distance, 2);
}

// A joining worker's host keeps its number if it is known, or gets the next one.
TEST_F(CoordinatorHostsTest, MemoryRecordsHostsOfJoiningWorkers) {
  announce_host_memory(files, run, folder / "shared", {0, 0, 1});
  MembershipCoordinator host = coordinator({"a", "a", "b"}, plan(3, 0, 0), plan(5, 0, 0));
  (void)board.set(JoinKeys{1}.request(), text(WorkerJoinRequest{1, "c", "cpu"}));
  (void)board.set(JoinKeys{2}.request(), text(WorkerJoinRequest{1, "b", "cpu"}));
  host.poll(), host.poll();
  ASSERT_TRUE(host.change_membership(survivor_states({0, 1, 2}, 7)).has_value());
  EXPECT_EQ(find_host_memory(run)->host_of, (std::vector<int>{0, 0, 1, 2, 1}));
}

// Worker 4 has joined and was lost before another process hosts the run: the next joining worker gets the
// next id.
TEST_F(CoordinatorHostsTest, WorkerIdsAreNotReused) {
  announce_host_memory(files, run, folder / "shared", {0, 0, 1, 2, 1});
  MembershipChange order;
  order.membership = {3, {0, 1, 2}}, order.num_staying = 3, order.num_worker_ids = 5;
  order.from = order.to = plan(3, 0, 0);
  EXPECT_EQ(parse_membership_change(text(order)).num_worker_ids, 5);
  MembershipCoordinator::Inputs facts{.model = model, .run = run, .interim_planner_inputs = {}};
  facts.interim_planner_inputs.choose = [&](int size) { return plan(size, 0, 0); };
  const std::vector<WorkerEntry> known = {
      {0, 1, "a", "cpu", {}}, {1, 1, "a", "cpu", {}}, {2, 1, "b", "cpu", {}}};
  MembershipCoordinator next(board, std::move(facts), known, order);
  (void)board.set(JoinKeys{1}.request(), text(WorkerJoinRequest{1, "b", "cpu"}));
  next.poll();
  const auto after = next.change_membership(survivor_states({0, 1, 2}, 7));
  ASSERT_TRUE(after.has_value()) << after.error();
  EXPECT_EQ(after->membership.worker_ids, (std::vector<int>{0, 1, 2, 5}));
  EXPECT_EQ(after->num_worker_ids, 6);
  EXPECT_EQ(find_host_memory(run)->host_of, (std::vector<int>{0, 0, 1, 2, 1, 1}));
}

// Rank 1 is lost with its shard. Step 6 is in the memory of rank 0's host, which provides it when asked.
TEST_F(CoordinatorHostsTest, RequestsCheckpointsFromHostMemory) {
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
  MembershipCoordinator host = coordinator({"a", "b"}, plan(2, 1, 0), plan(1, 0, 0));
  std::thread rank_0([&] {
    while (!*board.find(RecoveryKeys{0}.export_request())) std::this_thread::yield();
    export_host_memory(run);
    (void)board.set(RecoveryKeys{0}.exported(0), "");
  });
  const auto order = host.change_membership(survivor_states({0}, 9));
  rank_0.join();
  ASSERT_TRUE(order.has_value()) << order.error();
  EXPECT_EQ(order->source, MembershipChange::Source::checkpoint);
  EXPECT_EQ(order->state.step, 6);
  EXPECT_EQ(order->num_steps_lost, 3);
  ASSERT_TRUE(newest_complete(run).has_value());
  EXPECT_EQ(newest_complete(run)->step, 6);
}

// Three of four ranks continue at once; two may be an isolated partition, unless the others are known to have
// ended.
TEST_F(CoordinatorHostsTest, HalfOfRunWaitsForOtherHalf) {
  for (const auto& [num_reporting, have_ended] :
       {std::pair(3, false), std::pair(2, false), std::pair(2, true)}) {
    const Path own_run = folder / fmt::format("{}-{}", num_reporting, have_ended);
    MemoryBoard own;
    std::vector<WorkerEntry> workers(4);
    MembershipCoordinator::Inputs facts{.model = model, .run = own_run, .interim_planner_inputs = {}};
    facts.interim_planner_inputs.choose = [&](int size) { return plan(size, 0, 0); };
    MembershipCoordinator host(own, std::move(facts), workers, plan(4, 0, 0), 0);
    EmergencyCheckpointOptions emergency_checkpoint{.run = own_run, .model = model};
    emergency_checkpoint.coordinator = &host, emergency_checkpoint.may_be_partitioned = true;
    emergency_checkpoint.partition_timeout = Seconds(0.5);
    EmergencyCheckpointHost side(own, files, std::move(emergency_checkpoint));
    std::vector<bool> is_gone(4);
    for (int rank = num_reporting; rank < 4; ++rank) {
      is_gone[static_cast<std::size_t>(rank)] = true;
      (void)own.set(lost_key(rank), have_ended ? kEnded : "");
    }
    for (int rank = 0; rank < num_reporting; ++rank)
      (void)own.set(RecoveryKeys{0}.survivor_state(rank), text(survivor_states({rank}, 7).front()));
    (void)own.set(RecoveryKeys{0}.first_report(), "");
    side.poll(is_gone);
    EXPECT_EQ(host.membership().generation, num_reporting == 3 || have_ended ? 1 : 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(600));
    side.poll(is_gone);
    EXPECT_EQ(host.membership().generation, 1) << num_reporting;
  }
}

}  // namespace
}  // namespace optimus::test
