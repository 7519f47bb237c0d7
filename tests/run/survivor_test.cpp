// Ranks are threads, and one of them is lost at every place of its program in turn. The survivors' emergency
// checkpoint must equal, bit for bit, the undisturbed training's checkpoint of that step.
#include "run/survivor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <map>
#include <set>
#include <thread>

#include "base/temporary_folder.h"
#include "comm/thread_comm.h"
#include "elastic/emergency_checkpoint_host.h"
#include "engine/device.h"
#include "plan/layouts.h"
#include "plan/plan_json.h"
#include "run/faulty_comm.h"
#include "run/memory_board.h"
#include "run/run_folder.h"
#include "run/train_rank.h"
#include "run/worker.h"

namespace optimus::test {
namespace {

constexpr std::int64_t kSteps = 4;

class SurvivorTest : public testing::Test {
 protected:
  struct Layout3d {
    int devices = 3, tp = 1, pp = 1, zero = 0;
    bool has_copies = false;  // devices fail often, so the planner chooses redundant copies
  };
  struct Ran {
    std::string line;               // from the host; empty if the run succeeded
    int num_operations = 0;         // of rank 0, in all steps except the last
    std::vector<int> gates;         // of rank 0
    std::vector<std::string> ends;  // by rank: done, killed, or the error
  };

  SurvivorTest() {
    std::string text;
    for (int i = 0; i < 200; ++i) text += fmt::format("line {} of the text, {}\n", i, i * 7 % 31);
    folder_.write("text.txt", text);
  }

  TrainOptions options_for(const Path& run, const Layout3d& layout, const std::string& save_every) const {
    TrainOptions options;
    options.model.model = "gpt2";
    options.model.overrides = {.layers = 2, .hidden = 16, .heads = 2, .max_positions = 8};
    options.data = {(folder_.path() / "text.txt").string()};
    options.steps = kSteps, options.batch = 12, options.sequence_length = 8, options.sample_tokens = 0;
    options.microbatch = 2;
    options.precision = "fp64", options.threads = 1, options.device = "cpu", options.dropout = 0.1;
    options.run = run, options.devices = layout.devices, options.validation = 0;
    options.layout.tp = Range{layout.tp, layout.tp}, options.layout.pp = Range{layout.pp, layout.pp};
    options.layout.zero = Range{layout.zero, layout.zero};
    if (layout.has_copies) options.failures.mtbf = Seconds(60);
    options.save_every = save_every, options.keep_last = 0, options.timeout = Seconds(20);
    options.is_static = true;  // no plan is chosen for its redundant copies
    return options;
  }

  Ran train(const Path& folder, const Layout3d& layout, const std::string& save_every,
            const std::vector<Fault>& faults) {
    TrainOptions options = options_for(folder, layout, save_every);
    OptionTable table;
    declare(table, options);
    NullSink quiet;
    const RunSpec spec = prepare_run(options, &table, files_, quiet, false);
    begin_run_folder(spec, &table, files_);
    ThreadWorld world(layout.devices);
    MemoryBoard board;
    Ran ran;
    ran.ends.resize(static_cast<std::size_t>(layout.devices));
    std::vector<std::atomic<bool>> is_gone(ran.ends.size());
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < layout.devices; ++rank)
      ranks.emplace_back([&, rank] {
        const auto at = static_cast<std::size_t>(rank);
        ran.ends[at] = one_rank(spec, world, board, rank, faults[at], ran);
        is_gone[at] = true;
      });
    EmergencyCheckpointHost emergency_checkpoint(board, files_,
                                                 {.run = folder,
                                                  .model = spec.settings.model,
                                                  .small_files = small_files(spec.settings),
                                                  .late_grace = Seconds(0.5)});
    bool is_under_way = true;
    while (is_under_way) {
      std::vector<bool> gone(is_gone.begin(), is_gone.end());
      const bool is_salvaging = emergency_checkpoint.poll(gone);
      is_under_way = is_salvaging || std::find(gone.begin(), gone.end(), false) != gone.end();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (std::thread& rank : ranks) rank.join();
    ran.line = emergency_checkpoint.finish();
    return ran;
  }

  std::string one_rank(const RunSpec& spec, ThreadWorld& world, Board& board, int rank, const Fault& fault,
                       Ran& ran) {
    class Shared final : public Board {
     public:
      explicit Shared(Board& board) : board_(board) {}
      Outcome<void> set(const std::string& key, const std::string& value) override {
        return board_.set(key, value);
      }
      Outcome<std::optional<std::string>> find(const std::string& key) override { return board_.find(key); }

     private:
      Board& board_;
    };
    set_num_threads(1);
    const std::unique_ptr<std::FILE, int (*)(std::FILE*)> nowhere(std::fopen("/dev/null", "w"), std::fclose);
    StatusLine line(nowhere.get());
    NullSink quiet;
    FaultyComm comm(world.comm(rank), fault);
    try {
      const Group world_group{Role::world, {}};
      throw_if_failed(comm.connect(0, {&world_group, 1}, Deadline::after(Seconds(20), "connecting")));
      const StopToken polled_after_steps([&] {
        if (rank == 0) ran.num_operations = comm.num_operations, ran.gates = comm.gates;
        return StopRequest::none;
      });
      train_rank(spec, {comm, at::Device(at::kCPU), 1, quiet, line, polled_after_steps,
                        [&] { return std::make_unique<Shared>(board); }});
      return "done";
    } catch (const Killed&) {
      return "killed";
    } catch (const std::exception& error) {
      return error.what();
    }
  }

  // Compared by name, because other ranks write the pieces in another order.
  static std::map<std::string, std::vector<double>> values(const Checkpoint& checkpoint) {
    std::map<std::string, std::vector<double>> result;
    for (const CheckpointTensor& tensor : checkpoint.manifest().tensors)
      for (const StateField field : kStateFields) {
        std::vector<double>& all = result[fmt::format("{}/{}", text(field), tensor.name)];
        all.resize(static_cast<std::size_t>(tensor.shape.num_elements()));
        checkpoint.read(field, tensor.name, Box(tensor.shape), std::span(all));
      }
    return result;
  }

  // Expects exactly one checkpoint in the run, equal to the undisturbed run's. Returns its step.
  std::int64_t expect_equal_to_undisturbed(const Path& run, const Path& undisturbed) {
    const std::vector<CheckpointEntry> all = list_checkpoints(run);
    EXPECT_EQ(all.size(), 1U);
    if (all.size() != 1) return -1;
    EXPECT_TRUE(all[0].is_whole);
    const Checkpoint saved = Checkpoint::open(all[0].folder),
                     whole = Checkpoint::open(undisturbed / fmt::format("checkpoints/step-{}", all[0].step));
    EXPECT_TRUE(values(saved) == values(whole)) << "step " << all[0].step;
    EXPECT_EQ(saved.small_file(kTrainingStateFile), whole.small_file(kTrainingStateFile));
    EXPECT_EQ(num_lines(run / "metrics.jsonl"), all[0].step);
    return all[0].step;
  }
  static std::int64_t num_lines(const Path& path) {
    const std::string content = value_or_throw(read_file(path));
    return std::count(content.begin(), content.end(), '\n');
  }

  TemporaryFolder folder_;
  RealFileSystem files_;
};

TEST_F(SurvivorTest, SavesStateAfterLossAtAnyOperation) {
  // Each rank's state has a copy: with tp 2 ranks 0 and 2 own the same state, with pp 2 ranks 0 and 1; a
  // shard has a copy on the next rank.
  for (const Layout3d layout :
       {Layout3d{3}, Layout3d{4, 2}, Layout3d{.devices = 4, .pp = 2}, Layout3d{.zero = 1, .has_copies = true},
        Layout3d{.zero = 3, .has_copies = true}}) {
    const std::string name = fmt::format("{}-{}-{}-{}", layout.devices, layout.tp, layout.pp, layout.zero);
    const auto num_ranks = static_cast<std::size_t>(layout.devices);
    const Path undisturbed = folder_ / ("whole-" + name);
    const Ran whole = train(undisturbed, layout, "1", std::vector<Fault>(num_ranks));
    ASSERT_EQ(whole.ends, std::vector<std::string>(num_ranks, "done"));
    ASSERT_EQ(read_plan(undisturbed / "plan.json").copy_distance, layout.has_copies ? 1 : 0);
    // Saves communicate too, so the operations are counted in a run without them.
    const Ran counted = train(folder_ / ("counted-" + name), layout, "0", std::vector<Fault>(num_ranks));
    std::set<std::int64_t> steps;
    const int last = counted.gates.back();
    const int stride = std::getenv("OPTIMUS_LONG") != nullptr ? 1 : std::max(1, last / 5);
    for (int operation = last % stride; operation <= last; operation += stride)
      for (const Fault::Kind kind : {Fault::Kind::dies_before, Fault::Kind::dies_after}) {
        const std::size_t victim =
            static_cast<std::size_t>(operation + (kind == Fault::Kind::dies_after)) % num_ranks;
        std::vector<Fault> faults(num_ranks);
        faults[victim] = {kind, operation};
        const Path run = folder_ / fmt::format("{}-{}-{}", name, operation, static_cast<int>(kind));
        const Ran ran = train(run, layout, "0", faults);
        SCOPED_TRACE(fmt::format("{} rank {} operation {} kind {}: {}", name, victim, operation,
                                 static_cast<int>(kind), ran.line));
        ASSERT_EQ(ran.ends[victim], "killed");
        if (ran.line.empty() || ran.line.find("no checkpoint yet") != std::string::npos) {
          EXPECT_EQ(num_lines(run / "metrics.jsonl"), 0);  // in the first step: there is nothing to save yet
          continue;
        }
        const std::int64_t step = expect_equal_to_undisturbed(run, undisturbed);
        EXPECT_NE(ran.line.find(fmt::format("the other {} ranks saved step {}: optimus train --resume ",
                                            num_ranks - 1, step)),
                  std::string::npos);
        steps.insert(step);
        std::filesystem::remove_all(run);
      }
    EXPECT_EQ(steps, (std::set<std::int64_t>{1, 2, 3}));
  }
}

// Some ranks pass the gate, some fail at it, and one is lost after it: the ranks that failed catch up.
TEST_F(SurvivorTest, FailedRanksCatchUpFromGate) {
  const Layout3d layout{4, 2};
  const Path undisturbed = folder_ / "whole";
  train(undisturbed, layout, "1", std::vector<Fault>(4));
  const Ran whole = train(folder_ / "counted", layout, "0", std::vector<Fault>(4));
  for (std::size_t step = 0; step < 3; ++step) {
    const Path run = folder_ / fmt::format("run-{}", step);
    // Gates have the same operation number on all ranks of this plan, whose step programs are alike.
    const Fault fails{Fault::Kind::fails, whole.gates[step]},
        dies{Fault::Kind::dies_after, whole.gates[step]};
    const Ran ran = train(run, layout, "0", {fails, {}, dies, fails});
    SCOPED_TRACE(ran.line);
    EXPECT_EQ(ran.ends[2], "killed");
    EXPECT_EQ(expect_equal_to_undisturbed(run, undisturbed), static_cast<std::int64_t>(step) + 1);
  }
  // No other rank has passed the gate, so nothing of the step has happened.
  const Fault fails{Fault::Kind::fails, whole.gates[2]}, dies{Fault::Kind::dies_after, whole.gates[2]};
  const Ran ran = train(folder_ / "none", layout, "0", {fails, fails, dies, fails});
  EXPECT_EQ(expect_equal_to_undisturbed(folder_ / "none", undisturbed), 2) << ran.line;
}

// The redundant copy of a shard is updated from the gate as its device would have done.
TEST_F(SurvivorTest, CopiesCatchUpFromGate) {
  for (const int zero : {1, 2, 3}) {
    const Layout3d layout{.zero = zero, .has_copies = true};
    const Path undisturbed = folder_ / fmt::format("whole-{}", zero);
    train(undisturbed, layout, "1", std::vector<Fault>(3));
    const Ran whole = train(folder_ / fmt::format("counted-{}", zero), layout, "0", std::vector<Fault>(3));
    const Fault fails{Fault::Kind::fails, whole.gates[1]}, dies{Fault::Kind::dies_after, whole.gates[1]};
    const Path run = folder_ / fmt::format("run-{}", zero);
    const Ran ran = train(run, layout, "0", {fails, dies, {}});
    SCOPED_TRACE(ran.line);
    EXPECT_EQ(ran.ends[1], "killed");
    EXPECT_EQ(expect_equal_to_undisturbed(run, undisturbed), 2);
  }
}

// Losing a device together with the one that has its copy loses state.
TEST_F(SurvivorTest, ReportsLossOfBothCopies) {
  const Layout3d layout{.zero = 3, .has_copies = true};
  const Ran whole = train(folder_ / "whole", layout, "0", std::vector<Fault>(3));
  const Fault dies{Fault::Kind::dies_after, whole.gates[1]};
  const Ran ran = train(folder_ / "run", layout, "0", {{}, dies, dies});
  EXPECT_NE(ran.line.find("; state lost with the ranks: embedding.words.weight ["), std::string::npos)
      << ran.line;
}

TEST_F(SurvivorTest, NamesStateWithoutCopy) {
  const Layout3d layout{.devices = 3, .zero = 3};
  const Path run = folder_ / "run";
  const Ran whole = train(folder_ / "whole", layout, "1", std::vector<Fault>(3));
  std::vector<Fault> faults(3);
  faults[1] = {Fault::Kind::dies_after, whole.gates[2]};
  const Ran ran = train(run, layout, "1", faults);
  EXPECT_NE(ran.line.find("; state lost with the ranks: embedding.words.weight ["), std::string::npos)
      << ran.line;
  EXPECT_NE(ran.line.find(" more; the last complete checkpoint is from step "), std::string::npos)
      << ran.line;
  for (const CheckpointEntry& entry : list_checkpoints(run)) EXPECT_TRUE(entry.is_whole);
}

// A rank that fails on its own still has its state.
TEST_F(SurvivorTest, AllRanksSaveIfNoneIsLost) {
  const Layout3d layout{.devices = 3, .zero = 3};
  const Path undisturbed = folder_ / "whole";
  train(undisturbed, layout, "1", std::vector<Fault>(3));
  const Ran whole = train(folder_ / "counted", layout, "0", std::vector<Fault>(3));
  std::vector<Fault> faults(3);
  faults[1] = {Fault::Kind::fails, whole.gates[2] - 2};
  const Ran ran = train(folder_ / "run", layout, "0", faults);
  EXPECT_NE(ran.line.find("; all 3 ranks saved step 2: "), std::string::npos) << ran.line;
  EXPECT_EQ(expect_equal_to_undisturbed(folder_ / "run", undisturbed), 2);
}

}  // namespace
}  // namespace optimus::test
