#include "elastic/host_memory.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/temporary_folder.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/save.h"
#include "checkpoint/training_state.h"

namespace optimus::test {
namespace {

struct HostMemoryTest : testing::Test {
  HostMemoryTest() {
    std::filesystem::create_directories(run);
    std::filesystem::create_directories(base);
  }
  // Writes one rank's part of a step to a host's folder.
  void write_part_of(const HostMemory& memory, int writer, int copy_holder, std::int64_t step) {
    const Path at = memory.step_folder(copy_holder, step);
    value_or_throw(files.create_folders(at));
    const std::vector<float> values(4, static_cast<float>(writer));
    const StatePiece piece{.field = StateField::master,
                           .tensor = fmt::format("weight{}", writer),
                           .shape = {4},
                           .box = Box(Shape{4}),
                           .type = ElementType::f32,
                           .values = std::as_bytes(std::span(values))};
    value_or_throw(write_shards(files, at, Rank{writer}, {&piece, 1}));
    TrainingState state;
    state.step = step;
    value_or_throw(write_step_files(
        files, at, {{std::string(kTrainingStateFile), training_state_text(state)}}, memory.num_writers()));
  }
  TemporaryFolder folder;
  const Path run = folder / "run", base = folder / "shared";
  RealFileSystem files;
};

TEST_F(HostMemoryTest, NextHostStoresCopyOfEveryRank) {
  for (const std::vector<int>& host_of :
       {std::vector<int>{0, 0, 1, 1}, {0, 1, 2}, {0, 0, 0, 1}, {0, 1, 1, 1, 2, 2}, {0, 1, 0, 1}}) {
    const HostMemory memory{base, host_of};
    std::vector<int> copied;
    for (int rank = 0; rank < static_cast<int>(host_of.size()); ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      ASSERT_TRUE(memory.copy_holder_of(rank));
      EXPECT_EQ(host_of[static_cast<std::size_t>(*memory.copy_holder_of(rank))],
                (host_of[at] + 1) % memory.num_hosts());
      for (const int other : memory.copied_by(rank)) copied.push_back(other);
    }
    std::sort(copied.begin(), copied.end());
    for (std::size_t rank = 0; rank < host_of.size(); ++rank)
      EXPECT_EQ(copied.at(rank), static_cast<int>(rank));
  }
  const HostMemory alone{base, {0, 0}};
  EXPECT_FALSE(alone.copy_holder_of(1));
  EXPECT_TRUE(alone.copied_by(0).empty());
}

// The next host is the next one that has a writer.
TEST_F(HostMemoryTest, OnlyRanksOfThePlanAreWriters) {
  const HostMemory all{base, {0, 0, 1, 1, 2, 2}};
  const HostMemory some = all.for_ranks({1, 4, 5});
  EXPECT_EQ(some.host_of, (std::vector<int>{0, 2, 2}));
  EXPECT_EQ(some.rank_of(1), 4);
  EXPECT_EQ(some.copy_holder_of(0), 1);
  EXPECT_EQ(some.copy_holder_of(1), 0);
  EXPECT_EQ(some.copy_holder_of(2), 0);
  EXPECT_EQ(some.copied_by(0), (std::vector<int>{1, 2}));
  EXPECT_EQ(some.step_folder(2, 7), all.step_folder(5, 7));
  EXPECT_TRUE(some.is_first_of_host(1));
  EXPECT_EQ(some.bytes_on_host(0, Bytes(300)), Bytes(300));
  EXPECT_EQ(some.bytes_on_host(1, Bytes(300)), Bytes(0));
  EXPECT_FALSE(all.for_ranks({4, 5}).copy_holder_of(0));
}

// Worker ids include processes that were lost; ranks are the present ones.
TEST_F(HostMemoryTest, FollowsMembershipChanges) {
  announce_host_memory(files, run, base, {0, 0, 1, 1});
  write_hosts(files, run, {0, 0, 1, 1, 2, 0});
  const HostMemory all = *find_host_memory(run);
  EXPECT_EQ(all.host_of, (std::vector<int>{0, 0, 1, 1, 2, 0}));
  const HostMemory now = all.for_workers({1, 3, 4});
  EXPECT_EQ(now.host_of, (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(now.rank_of(1), 1);
  const HostMemory some = now.for_ranks({0, 2});
  EXPECT_EQ(some.rank_of(1), 2);
  EXPECT_EQ(some.copy_holder_of(0), 1);
  EXPECT_EQ(some.step_folder(1, 7), all.step_folder(4, 7));
}

// A step needs as many parts as its own plan had writers, whatever the run began with.
TEST_F(HostMemoryTest, StepRecordsNumberOfWriters) {
  const HostMemory memory = announce_host_memory(files, run, base, {0, 0, 1, 1});
  open_host_memory(memory, 0, Bytes(1000));
  const HostMemory two = memory.for_ranks({1, 2});
  for (int writer = 0; writer < 2; ++writer) write_part_of(two, writer, writer, 8);
  export_host_memory(run);
  EXPECT_EQ(commit_host_memory(files, run), 8);
  EXPECT_EQ(Checkpoint::open(find_checkpoint(run)).manifest().tensors.size(), 2U);
}

TEST_F(HostMemoryTest, CommitsNewestCompleteStep) {
  const HostMemory memory = announce_host_memory(files, run, base, {0, 1});
  EXPECT_EQ(find_host_memory(run)->host_of, memory.host_of);
  open_host_memory(memory, 0, Bytes(1000));
  for (const std::int64_t step : {4, 6})
    for (int writer = 0; writer < 2; ++writer) {
      // writing step 6 was interrupted
      if (step == 4 || writer == 0) write_part_of(memory, writer, writer, step);
      if (step == 4) write_part_of(memory, writer, 1 - writer, step);
    }
  export_host_memory(run);
  EXPECT_EQ(commit_host_memory(files, run), 4);
  EXPECT_EQ(newest_complete(run)->step, 4);
  EXPECT_EQ(Checkpoint::open(find_checkpoint(run)).manifest().tensors.size(), 2U);
  EXPECT_FALSE(std::filesystem::exists(run / "memory"));
  export_host_memory(run);  // the files have it already
  EXPECT_FALSE(commit_host_memory(files, run));
  remove_host_memory(run, true);
  EXPECT_TRUE(std::filesystem::is_empty(base));
}

// One host is lost with its memory; the other has copies of its parts.
TEST_F(HostMemoryTest, OneOfTwoHostsHasAllParts) {
  const HostMemory memory = announce_host_memory(files, run, base, {0, 1});
  open_host_memory(memory, 0, Bytes(1000));
  for (int writer = 0; writer < 2; ++writer) write_part_of(memory, writer, 0, 8);
  export_host_memory(run);
  EXPECT_EQ(commit_host_memory(files, run), 8);
}

TEST_F(HostMemoryTest, DoesNotCommitIncompleteSteps) {
  const HostMemory memory = announce_host_memory(files, run, base, {0, 1});
  open_host_memory(memory, 0, Bytes(1000));
  write_part_of(memory, 1, 1, 8);
  export_host_memory(run);
  EXPECT_FALSE(commit_host_memory(files, run));
  EXPECT_FALSE(newest_complete(run));
  std::filesystem::copy(run, folder / "copy", std::filesystem::copy_options::recursive);
  EXPECT_FALSE(find_host_memory(folder / "copy"));
}

TEST_F(HostMemoryTest, RejectsInvalidHostList) {
  announce_host_memory(files, run, base, {0, 1});
  const std::string good = value_or_throw(read_file(run / "memory.json", Bytes(1 << 12)));
  for (const std::string hosts : {"[]", "[0, 5]", "[1, 1]", "[-1]", "[0.5]"}) {
    std::string bad = good;
    const std::size_t begin = bad.find('['), end = bad.find(']');
    bad.replace(begin, end - begin + 1, hosts);
    value_or_throw(write_atomically(files, run / "memory.json", bad));
    EXPECT_THROW(find_host_memory(run), UserError) << hosts;
  }
  EXPECT_THROW(open_host_memory({folder / "none" / "optimus-x", {0}}, 0, Bytes(1)), RuntimeFailure);
}

}  // namespace
}  // namespace optimus::test
