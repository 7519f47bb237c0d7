// Ranks as threads that die at any operation, leave, and come: the training goes on, and learns what one device learns.
#include "run/regroup.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <deque>
#include <random>
#include <set>
#include <thread>

#include "base/json.h"
#include "base/temporary_folder.h"
#include "base/text.h"
#include "comm/thread_comm.h"
#include "elastic/control.h"
#include "engine/device.h"
#include "run/choose_plan.h"
#include "run/faulty_comm.h"
#include "run/memory_store.h"
#include "run/rank_watch.h"
#include "run/regrouping.h"
#include "run/salvage_host.h"
#include "run/store_board.h"
#include "run/train_rank.h"
#include "run/training.h"

namespace optimus::test {
namespace {

constexpr std::int64_t kStepsHere = 30;  // time enough for those who come
constexpr int kMostSeats = 12;

// What happens to one seat.
struct Fate {
  Fault fault{};
  std::int64_t leaves_after = -1;  // a step; -1: it does not
  int stays_for = -1;  // so often it says that it stays, twice after each step; then that it leaves
  std::int64_t comes_after = -1;  // it is not there from the begin
};

struct Story {
  int num_ranks = 4;
  std::map<std::string, int> layout{};  // tp, pp, zero, dp: what the first plan must be
  std::vector<Fate>
      fates{};  // [seat], the first num_ranks from the begin; then in the order in which they come
  std::string save_every = "0";
  bool wants_copies = true;  // of state, in plans that are chosen
  bool is_planner_late = false;
};

class RegroupTest : public testing::Test {
 protected:
  RegroupTest() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += fmt::format("line {} of the text, {}\n", i, i * 7 % 31);
    folder_.write("text.txt", text);
  }

  TrainOptions options_for(const Path& run, const Story& story) const {
    TrainOptions options;
    options.model.model = "gpt2";
    options.model.overrides = {.layers = 3, .hidden = 16, .heads = 2, .max_positions = 8};
    options.data = {(folder_.path() / "text.txt").string()};
    options.steps = kStepsHere, options.batch = 12, options.sequence_length = 8, options.sample_tokens = 0;
    options.precision = "fp64", options.threads = 1, options.device = "cpu", options.dropout = 0.1;
    options.run = run, options.devices = story.num_ranks, options.validation = 0;
    for (const auto& [name, value] : story.layout) {
      const Range only{value, value};
      (name == "tp"   ? options.layout.tp
       : name == "pp" ? options.layout.pp
       : name == "dp" ? options.layout.dp
                      : options.layout.zero) = only;
    }
    options.save_every = story.save_every, options.keep_last = 0, options.patience = Seconds(20);
    options.is_static = !story.wants_copies;
    return options;
  }

  struct Ran {
    std::string line;               // of the host; empty when all went well
    std::vector<std::string> ends;  // [seat]: done, killed, left, or why it failed
    std::vector<double> losses;     // by step
    std::vector<Json> decisions;
  };

  // Everything that threads of one story share.
  struct World {
    const PreparedRun& run;
    const TrainOptions& options;
    ThreadWorld threads{kMostSeats};
    std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>();
    std::atomic<std::int64_t> step = 0;
    std::array<std::atomic<bool>, kMostSeats> is_gone{};
    std::array<std::string, kMostSeats> ends{};
    std::atomic<bool> is_over = false;
  };

  static void run_seat(World& world, int seat, const Fate& fate, int num_first,
                       std::optional<RegroupOrder> order) {
    set_num_threads(1);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"), std::fclose);
    StatusLine line(nowhere.get());
    NullSink quiet;
    FaultyComm comm(world.threads.comm(seat), fate.fault);
    comm.keeps_connection = true;
    std::string& end = world.ends[static_cast<std::size_t>(seat)];
    try {
      if (!order) comm.shrink(num_first);  // the others come later, or never
      RankWatch watch(world.store, "", comm, seat, order ? order->membership.generation : 0);
      int num_asked = 0;
      const auto leaves = [&] {
        return (fate.leaves_after >= 0 && world.step >= fate.leaves_after) ||
               (fate.stays_for >= 0 && ++num_asked > fate.stays_for);
      };
      const RankElastic elastic{
          .seat = seat,
          .leaves = leaves,
          .wants_to_meet = [&] { return watch.wants_to_meet() || leaves(); },
          .regrouped = [&](const RegroupOrder& next) { watch.regrouped(next.membership); },
          .speak_to_people = [] {},
          .order = std::move(order)};
      StepAgreement agreement(comm, world.options.patience);
      const auto is_asked = [&] {
        if (comm.rank() == 0) ++world.step;
        return false;
      };
      const TrainResult result =
          train_rank(world.run, world.options,
                     {comm, at::Device(at::kCPU), 1, quiet, line, agreement, is_asked,
                      [&] { return std::make_unique<StoreBoard>(world.store); }, &elastic});
      agreement.take();
      end = result.checkpoint.empty() ? "left" : "done";
    } catch (const Killed&) {
      end = "killed";
    } catch (const LeftBehind&) {
      end = "left behind";
    } catch (const Interrupted&) {
      end = "interrupted";
    } catch (const std::exception& error) {
      end = error.what();
    }
    world.is_gone[static_cast<std::size_t>(seat)] = true;
  }

  // Comes when the run has done some steps.
  static void come(World& world, const Fate& fate, int num_first) {
    while (world.step < fate.comes_after && !world.is_over)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    const JoinKeys keys{*world.store->count(JoinKeys::counter())};
    (void)world.store->set(keys.comer(), text(Comer{1, "here", "cpu"}));
    while (!world.is_over) {
      if (const auto welcome = *world.store->find(keys.welcome())) {
        const std::size_t space = welcome->find(' ');
        return run_seat(world, std::stoi(welcome->substr(0, space)), fate, num_first,
                        parse_regroup_order(welcome->substr(space + 1)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  Ran train(const std::string& name, const Story& story) {
    const Path folder = folder_ / name;
    TrainOptions options = options_for(folder, story);
    OptionTable table;
    declare(table, options);
    NullSink quiet;
    const PreparedRun run = prepare_run(options, &table, files_, quiet, false);
    begin_run_folder(run.settings, options, &table, files_);
    World world{run, options};
    StoreBoard board(world.store);
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < story.fates.size(); ++i) {
      const int seat = static_cast<int>(i);
      threads.emplace_back([&, seat, fate = story.fates[i]] {
        if (fate.comes_after < 0)
          run_seat(world, seat, fate, story.num_ranks, std::nullopt);
        else
          come(world, fate, story.num_ranks);
      });
    }
    const std::string line = host(world, board, story);
    for (std::thread& thread : threads) thread.join();
    Ran ran{line, {world.ends.begin(), world.ends.end()}, {}, {}};
    for (const std::string& entry : split(value_or_throw(read_file(folder / "metrics.jsonl")), '\n'))
      if (!entry.empty()) {
        const Json json = parse_json(entry, "metrics");
        EXPECT_EQ(json["step"].get<std::int64_t>(), std::ssize(ran.losses) + 1) << "each step stands once";
        ran.losses.push_back(json["loss"].get<double>());
      }
    for (const std::string& entry : split(value_or_throw(read_file(folder / "decisions.jsonl")), '\n'))
      if (!entry.empty()) ran.decisions.push_back(parse_json(entry, "decisions"));
    return ran;
  }

  static FirstAnswers::Facts answers(const World& world, const Story& story) {
    FirstAnswers::Facts facts = first_answers(world.options, world.run.settings.model, {}, kMostSeats);
    if (story.is_planner_late)
      facts.choose = [choose = facts.choose](int size) {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        return choose(size);
      };
    return facts;
  }

  std::string host(World& world, Board& board, const Story& story) {
    std::vector<WorkerEntry> first(static_cast<std::size_t>(story.num_ranks));
    const TrainSettings& settings = world.run.settings;
    Regrouping regrouping(board,
                          {.model = settings.model,
                           .run = settings.run,
                           .answers = answers(world, story),
                           .improve =
                               [&](const Plan& plan) {
                                 (void)ask(settings.run, plan_wish(plan),
                                           Deadline::after(Seconds(5), "a test"));
                               }},
                          first, settings.plan, 0);
    SalvageHost salvage(board, files_,
                        {.run = settings.run,
                         .model = settings.model,
                         .small_files = small_files(settings),
                         .settle = Seconds(0.5),
                         .regrouping = &regrouping});
    bool is_under_way = true;
    while (is_under_way) {
      regrouping.look();
      const std::vector<bool> gone(world.is_gone.begin(), world.is_gone.end());
      const bool is_meeting = salvage.look(gone);
      is_under_way = is_meeting;
      for (const int seat : regrouping.membership().seats)
        is_under_way |= !gone[static_cast<std::size_t>(seat)];
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    world.is_over = true;
    const int first_seat = regrouping.staying().front();
    return world.ends[static_cast<std::size_t>(first_seat)] == "done" ? "" : salvage.finish();
  }

  void expect_undisturbed(const Ran& ran) {
    if (alone_.empty()) {
      Story alone{.num_ranks = 1, .fates = {Fate{}}};
      alone_ = train("alone", alone).losses;
    }
    EXPECT_EQ(ran.line, "");
    ASSERT_EQ(ran.losses.size(), static_cast<std::size_t>(kStepsHere)) << ran.line;
    for (std::size_t i = 0; i < alone_.size(); ++i)
      EXPECT_NEAR(ran.losses[i], alone_[i], 1e-9 * alone_[i]) << "step " << i + 1;
  }

  TemporaryFolder folder_;
  RealFileSystem files_;
  std::vector<double> alone_;
};

TEST_F(RegroupTest, OneDiesAndTheOthersGoOn) {
  Story story{.num_ranks = 4, .layout = {{"dp", 4}, {"zero", 0}}, .fates = std::vector<Fate>(4)};
  story.fates[2].fault = {Fault::Kind::dies_before, 40};
  const Ran ran = train("dies", story);
  expect_undisturbed(ran);
  EXPECT_EQ(ran.ends[2], "killed");
  for (const std::size_t seat : {0, 1, 3}) EXPECT_EQ(ran.ends[seat], "done");
  ASSERT_EQ(ran.decisions.size(), 1U);
  EXPECT_EQ(ran.decisions[0]["kind"], "recover");
  EXPECT_EQ(ran.decisions[0]["evidence"], "lost rank 2");
}

TEST_F(RegroupTest, RankZeroDiesAndAnotherKeepsTheRecords) {
  Story story{.num_ranks = 3, .layout = {{"dp", 3}, {"zero", 0}}, .fates = std::vector<Fate>(3)};
  story.fates[0].fault = {Fault::Kind::dies_after, 55};
  expect_undisturbed(train("first", story));
}

// What only the dead had is nowhere: the run goes back to its newest checkpoint, and says how far.
TEST_F(RegroupTest, LostStateComesFromTheNewestCheckpoint) {
  Story story{.num_ranks = 3,
              .layout = {{"dp", 3}, {"zero", 3}},
              .fates = std::vector<Fate>(3),
              .save_every = "2",
              .wants_copies = false};
  story.fates[1].fault = {Fault::Kind::dies_before, 100};
  const Ran ran = train("sharded", story);
  expect_undisturbed(ran);
  ASSERT_EQ(ran.decisions.size(), 1U);
  EXPECT_GT(ran.decisions[0]["step"].get<int>(), 0);
  EXPECT_EQ(ran.decisions[0]["step"].get<int>() % 2, 0);
}

TEST_F(RegroupTest, SomeLeaveAndSomeCome) {
  Story story{.num_ranks = 3, .layout = {{"pp", 3}}, .fates = std::vector<Fate>(5)};
  story.fates[1].leaves_after = 1;  // it has what nobody else has, and gives it away
  story.fates[3].comes_after = 2, story.fates[4].comes_after = 2;
  const Ran ran = train("leave", story);
  expect_undisturbed(ran);
  EXPECT_EQ(ran.ends[1], "left");
  for (const std::size_t seat : {0, 2, 3, 4}) EXPECT_EQ(ran.ends[seat], "done");
  std::string all;  // they may come one after the other, or together
  for (const Json& decision : ran.decisions) all += decision["evidence"].get<std::string>() + "; ";
  EXPECT_NE(all.find("rank 1 leaves"), std::string::npos) << all;
  EXPECT_NE(all.find("join"), std::string::npos) << all;
}

// A machine's notice reaches its ranks one after the other: one has said that it leaves when the others do not know of it yet.
TEST_F(RegroupTest, AllLeaveButNotAtOnce) {
  Story story{.num_ranks = 3, .layout = {{"pp", 3}}, .fates = std::vector<Fate>(3)};
  story.fates[1].stays_for = 4;  // it is the only one to leave after step 3
  story.fates[0].stays_for = story.fates[2].stays_for = 6;
  const Ran ran = train("one by one", story);
  EXPECT_EQ(ran.ends[0], "interrupted");
  EXPECT_EQ(ran.ends[1], "left");
  EXPECT_EQ(ran.ends[2], "interrupted");
  ASSERT_EQ(ran.decisions.size(), 1U);
  EXPECT_EQ(ran.decisions[0]["kind"], "drain");
  const auto newest = newest_whole(folder_ / "one by one");
  ASSERT_TRUE(newest.has_value());
  EXPECT_EQ(newest->step, std::ssize(ran.losses));
}

// Any seat may die at any operation, also while others regroup, leave at any step, or come.
TEST_F(RegroupTest, AnythingMayHappen) {
  const char* const seed_text = std::getenv("OPTIMUS_SEED");
  const unsigned seed = seed_text != nullptr ? static_cast<unsigned>(std::atoi(seed_text)) : 1;
  const int num_stories = std::getenv("OPTIMUS_LONG") != nullptr ? 300 : 25;
  const std::vector<std::map<std::string, int>> layouts = {{},
                                                           {{"dp", 4}, {"zero", 0}},
                                                           {{"tp", 2}, {"pp", 1}, {"zero", 0}},
                                                           {{"pp", 2}, {"tp", 1}},
                                                           {{"dp", 4}, {"zero", 1}},
                                                           {{"dp", 4}, {"zero", 3}}};
  std::map<std::string, int> seen;  // what has happened in all of them
  for (int number = 0; number < num_stories; ++number) {
    std::mt19937 random(seed * 1000U + static_cast<unsigned>(number));
    const auto below = [&](int bound) { return static_cast<int>(random() % static_cast<unsigned>(bound)); };
    Story story{.num_ranks = 4, .layout = layouts[static_cast<std::size_t>(below(6))]};
    story.fates.resize(static_cast<std::size_t>(4 + below(4)));
    for (std::size_t i = 0; i < story.fates.size(); ++i) {
      Fate& fate = story.fates[i];
      if (i >= 4) fate.comes_after = below(15);
      if (below(3) == 0 && i != 3)
        fate.fault = {below(2) == 0 ? Fault::Kind::dies_before : Fault::Kind::dies_after,
                      below(i < 4 ? 400 : 200)};
      if (below(5) == 0 && i != 3) fate.leaves_after = below(20);
    }
    story.save_every = below(2) == 0 ? "0" : "2";
    story.is_planner_late = below(2) == 0;
    const Ran ran = train(fmt::format("story-{}", number), story);
    SCOPED_TRACE(fmt::format("seed {} story {}: {}", seed, number, fmt::join(ran.ends, ", ")));
    expect_undisturbed(ran);
    for (const Json& decision : ran.decisions) {
      ++seen[decision["kind"].get<std::string>()];
      const std::string evidence = decision["evidence"].get<std::string>();
      for (const char* const answer : {"templates", "takes over"})
        if (evidence.find(answer) != std::string::npos) ++seen[answer];
    }
    std::filesystem::remove_all(folder_ / fmt::format("story-{}", number));
    if (HasFailure()) return;
  }
  for (const char* const kind : {"recover", "drain", "join"}) EXPECT_GT(seen[kind], num_stories / 10) << kind;
  EXPECT_GT(seen["templates"] + seen["takes over"], 0);
  std::string counts;
  for (const auto& [kind, count] : seen) counts += fmt::format("{} {} ", count, kind);
  RecordProperty("seen", counts);
}

}  // namespace
}  // namespace optimus::test
