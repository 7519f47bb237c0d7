// Shared by tests of membership changes: ranks as threads that die at any operation, leave and join, while a
// host serves their run.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/json.h"
#include "base/temporary_folder.h"
#include "base/text.h"
#include "comm/thread_comm.h"
#include "elastic/emergency_checkpoint_host.h"
#include "elastic/membership_coordinator.h"
#include "engine/device.h"
#include "plan/plan_json.h"
#include "reshard/control.h"
#include "run/elastic_rank.h"
#include "run/faulty_comm.h"
#include "run/memory_store.h"
#include "run/rank_watch.h"
#include "run/run_folder.h"
#include "run/train_rank.h"
#include "rundir/store_board.h"
#include "settings/choose_plan.h"

namespace optimus::test {

inline constexpr std::int64_t kNumSteps = 30;  // enough steps for workers to join
inline constexpr std::int64_t kSwitchStep = 8;
inline constexpr int kMaxWorkers = 12;

// What happens to one worker.
struct RankFate {
  Fault fault{};
  std::int64_t leaves_after = -1;  // leaves after this step; -1: does not leave
  int stays_for = -1;  // answers this many times that it stays (one query per step), then that it leaves
  std::int64_t joins_after = -1;  // joins after this step; -1: present from the start
};

struct Scenario {
  int num_ranks = 4;
  int num_idle = 0;                     // of these, ranks without a part in the first plan
  std::map<std::string, int> layout{};  // tp, pp, zero, dp: constraints on the first plan
  std::vector<RankFate>
      // by worker id: the first num_ranks from the start, then the others in the order in which they join
      fates{};
  int drained = -1;  // a rank that a user drains from the start; -1: none
  std::string save_every = "0";
  bool wants_copies = true;  // redundant state copies in the chosen plans
  bool is_planner_late = false;
  std::map<std::string, int>
      next_layout{};  // constraints on the plan to switch to after kSwitchStep; empty: no switch
};

// The elastic side of a rank that is a thread.
class ThreadElasticRank final : public ElasticRank {
 public:
  ThreadElasticRank(int worker_id, RankWatch& watch, std::optional<MembershipChange> order)
      : worker_id_(worker_id), watch_(watch), order_(std::move(order)) {}
  int worker_id() const override { return worker_id_; }
  bool wants_membership_change() override { return watch_.wants_membership_change(); }
  void membership_changed(const MembershipChange& next) override {
    watch_.membership_changed(next.membership);
  }
  StepHeartbeat* step_heartbeat() override { return nullptr; }
  const std::optional<MembershipChange>& first_order() const override { return order_; }

 private:
  const int worker_id_;
  RankWatch& watch_;
  const std::optional<MembershipChange> order_;
};

class MembershipChangeTest : public testing::Test {
 protected:
  MembershipChangeTest() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += fmt::format("line {} of the text, {}\n", i, i * 7 % 31);
    folder_.write("text.txt", text);
  }

  static void constrain(TrainOptions& options, const std::map<std::string, int>& layout) {
    for (const auto& [name, value] : layout) {
      const Range only{value, value};
      (name == "tp"   ? options.layout.tp
       : name == "pp" ? options.layout.pp
       : name == "dp" ? options.layout.dp
                      : options.layout.zero) = only;
    }
  }

  // The value of --switch-at.
  std::string script_of(const Scenario& scenario, const std::string& name) {
    if (scenario.next_layout.empty()) return "";
    Scenario next = scenario;
    next.layout = scenario.next_layout, next.num_idle = 0;
    TrainOptions options = options_for(folder_ / (name + "-next"), next);
    OptionTable table;
    declare(table, options);
    NullSink quiet;
    const Plan plan = prepare_run(options, &table, files_, quiet, false).settings.plan;
    folder_.write(name + "-next.json", plan_text(plan));
    return fmt::format("{}:{}", kSwitchStep, (folder_ / (name + "-next.json")).string());
  }

  TrainOptions options_for(const Path& run, const Scenario& scenario) const {
    TrainOptions options;
    options.model.model = "gpt2";
    options.model.overrides = {.layers = 3, .hidden = 16, .heads = 2, .max_positions = 8};
    options.data = {(folder_.path() / "text.txt").string()};
    options.steps = kNumSteps, options.batch = 12, options.sequence_length = 8, options.sample_tokens = 0;
    options.precision = "fp64", options.threads = 1, options.device = "cpu", options.dropout = 0.1;
    options.run = run, options.devices = scenario.num_ranks - scenario.num_idle, options.validation = 0;
    constrain(options, scenario.layout);
    options.save_every = scenario.save_every, options.keep_last = 0, options.timeout = Seconds(20);
    options.is_static = !scenario.wants_copies;
    return options;
  }

  struct Ran {
    std::string line;               // from the host; empty if the run succeeded
    std::vector<std::string> ends;  // by worker id: done, killed, left, or the error
    std::vector<double> losses;     // by step
    std::vector<Json> decisions;
  };

  // Everything that the threads of one story share.
  struct World {
    const RunSpec& spec;
    ThreadWorld threads{kMaxWorkers};
    std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
    std::atomic<std::int64_t> step = 0;
    std::array<std::atomic<bool>, kMaxWorkers> is_gone{};
    std::array<std::string, kMaxWorkers> ends{};
    std::atomic<bool> is_over = false;
  };

  static void run_worker(World& world, int worker_id, const RankFate& fate, int num_first,
                         std::optional<MembershipChange> order) {
    set_num_threads(1);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"), std::fclose);
    StatusLine line(nowhere.get());
    NullSink quiet;
    FaultyComm comm(world.threads.comm(worker_id), fate.fault);
    comm.keeps_connection = true;
    std::string& end = world.ends[static_cast<std::size_t>(worker_id)];
    try {
      if (!order) comm.shrink(num_first);  // the others join later, or never
      RankWatch watch(world.store, "", comm, worker_id, order ? order->membership.generation : 0);
      int num_asked = 0;
      const auto leaves = [&] {
        return (fate.leaves_after >= 0 && world.step >= fate.leaves_after) ||
               (fate.stays_for >= 0 && ++num_asked > fate.stays_for);
      };
      ThreadElasticRank elastic(worker_id, watch, std::move(order));
      const StopToken stop([&] {
        if (comm.rank() == 0) ++world.step;
        return leaves() ? StopRequest::leave : StopRequest::none;
      });
      const TrainResult result =
          train_rank(world.spec, {comm, at::Device(at::kCPU), 1, quiet, line, stop,
                                  [&] { return std::make_unique<StoreBoard>(world.store); }, &elastic});
      end = result.end == TrainEnd::left ? "left" : result.end == TrainEnd::stopped ? "interrupted" : "done";
    } catch (const Killed&) {
      end = "killed";
    } catch (const ExcludedFromRun&) {
      end = "left behind";
    } catch (const std::exception& error) {
      end = error.what();
    }
    world.is_gone[static_cast<std::size_t>(worker_id)] = true;
  }

  // Joins once the run has completed some steps.
  static void join_run(World& world, const RankFate& fate, int num_first) {
    while (world.step < fate.joins_after && !world.is_over)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const JoinKeys keys{*world.store->increment(JoinKeys::counter())};
    (void)world.store->set(keys.request(), text(WorkerJoinRequest{1, "here", "cpu"}));
    while (!world.is_over) {
      if (const auto join_reply = *world.store->find(keys.join_reply())) {
        const std::size_t space = join_reply->find(' ');
        return run_worker(world, std::stoi(join_reply->substr(0, space)), fate, num_first,
                          parse_membership_change(join_reply->substr(space + 1)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Ran train(const std::string& name, const Scenario& scenario) {
    const Path folder = folder_ / name;
    TrainOptions options = options_for(folder, scenario);
    options.switch_at = script_of(scenario, name);
    OptionTable table;
    declare(table, options);
    NullSink quiet;
    const RunSpec spec = prepare_run(options, &table, files_, quiet, false);
    begin_run_folder(spec, &table, files_);
    if (scenario.drained >= 0)
      folder_.write(name + "/control/1-1.request", Json{{"drain", scenario.drained}}.dump() + "\n");
    World world{spec};
    StoreBoard board(world.store);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < scenario.fates.size(); ++i) {
      const int worker_id = static_cast<int>(i);
      threads.emplace_back([&, worker_id, fate = scenario.fates[i]] {
        if (fate.joins_after < 0)
          run_worker(world, worker_id, fate, scenario.num_ranks, std::nullopt);
        else
          join_run(world, fate, scenario.num_ranks);
      });
    }
    const std::string line = host(world, board, scenario);
    for (std::thread& thread : threads) thread.join();
    Ran ran{line, {world.ends.begin(), world.ends.end()}, {}, {}};
    for (const std::string& entry : split(value_or_throw(read_file(folder / "metrics.jsonl")), '\n'))
      if (!entry.empty()) {
        const Json json = parse_json(entry, "metrics");
        EXPECT_EQ(json["step"].get<std::int64_t>(), std::ssize(ran.losses) + 1)
            << "each step has exactly one line";
        ran.losses.push_back(json["loss"].get<double>());
      }
    for (const std::string& entry : split(value_or_throw(read_file(folder / "decisions.jsonl")), '\n'))
      if (!entry.empty()) ran.decisions.push_back(parse_json(entry, "decisions"));
    return ran;
  }

  static InterimPlanner::Inputs answers(const World& world, const Scenario& scenario) {
    InterimPlanner::Inputs facts =
        first_answers(planner_request(world.spec.options, world.spec.settings.model, {}), kMaxWorkers);
    if (scenario.is_planner_late)
      facts.choose = [choose = facts.choose](int size) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        return choose(size);
      };
    return facts;
  }

  std::string host(World& world, Board& board, const Scenario& scenario) {
    std::vector<WorkerEntry> first(static_cast<std::size_t>(scenario.num_ranks));
    const TrainSettings& settings = world.spec.settings;
    MembershipCoordinator coordinator(board,
                                      {.model = settings.model,
                                       .run = settings.run,
                                       .interim_planner_inputs = answers(world, scenario),
                                       .propose_improvement =
                                           [&](const Plan& plan) {
                                             (void)send_request(settings.run, switch_request_json(plan),
                                                                Deadline::after(Seconds(5), "a test"));
                                           }},
                                      first, settings.plan, 0);
    EmergencyCheckpointHost emergency_checkpoint(board, files_,
                                                 {.run = settings.run,
                                                  .model = settings.model,
                                                  .small_files = small_files(settings),
                                                  .late_grace = Seconds(0.5),
                                                  .coordinator = &coordinator});
    bool is_under_way = true;
    while (is_under_way) {
      coordinator.poll();
      const std::vector<bool> gone(world.is_gone.begin(), world.is_gone.end());
      const bool is_meeting = emergency_checkpoint.poll(gone);
      is_under_way = is_meeting;
      for (const int worker_id : coordinator.membership().worker_ids)
        is_under_way |= !gone[static_cast<std::size_t>(worker_id)];
      for (const int worker_id : coordinator.membership().worker_ids)  // as RunHost does
        if (gone[static_cast<std::size_t>(worker_id)] &&
            world.ends[static_cast<std::size_t>(worker_id)] == "killed")
          coordinator.request_survivor_states();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    world.is_over = true;
    const int first_seat = coordinator.remaining_workers().front();
    return world.ends[static_cast<std::size_t>(first_seat)] == "done" ? "" : emergency_checkpoint.finish();
  }

  void expect_equal_to_undisturbed(const Ran& ran) {
    if (alone_.empty()) {
      Scenario alone{.num_ranks = 1, .fates = {RankFate{}}};
      alone_ = train("alone", alone).losses;
    }
    EXPECT_EQ(ran.line, "");
    ASSERT_EQ(ran.losses.size(), static_cast<std::size_t>(kNumSteps)) << ran.line;
    for (std::size_t i = 0; i < alone_.size(); ++i)
      EXPECT_NEAR(ran.losses[i], alone_[i], 1e-9 * alone_[i]) << "step " << i + 1;
  }

  TemporaryFolder folder_;
  RealFileSystem files_;
  std::vector<double> alone_;
};

}  // namespace optimus::test
