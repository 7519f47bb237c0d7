// Saving and reading with different layouts, damaged files, disk failures.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "base/failing_file_system.h"
#include "base/temporary_folder.h"
#include "base/unsynced_file_system.h"
#include "checkpoint/checkpoints.h"
#include "layout/property.h"
#include "layout/random_layout.h"
#include "plan/layouts.h"
#include "plan/random_plan.h"
#include "synthetic_state.h"

namespace optimus {
namespace {

// The type in which the test stores a tensor, independent of the layout.
ElementType type_of(const TensorInfo& tensor) {
  constexpr std::array types{ElementType::f32, ElementType::f64, ElementType::bf16, ElementType::f16};
  return types[static_cast<std::size_t>(tensor.shape.num_elements()) % types.size()];
}

Path save_as(const Layout& layout, const Path& run, std::int64_t step, Bytes largest) {
  UnsyncedFileSystem files;
  const Path folder = value_or_throw(begin_checkpoint(files, run, step));
  const auto stored = boxes_to_save(layout);
  for (int rank = 0; rank < std::ssize(stored); ++rank) {
    SyntheticPieces pieces;
    for (const auto& [t, box] : stored[static_cast<std::size_t>(rank)]) {
      const TensorInfo& tensor = layout.tensors[static_cast<std::size_t>(t)];
      for (const StateField field : kStateFields)
        pieces.add(step, field, tensor.name, tensor.shape, box, type_of(tensor));
    }
    value_or_throw(write_shards(files, folder, Rank{rank}, pieces.pieces(), {largest}));
  }
  return value_or_throw(
      commit_checkpoint(files, folder, {static_cast<int>(stored.size()), small_files(step)}));
}

template <typename Real>
void expect_box(const Checkpoint& saved, StateField field, const TensorInfo& tensor, const Box& box) {
  std::vector<double> exact = synthetic_values(saved.step(), field, tensor.name, tensor.shape, box);
  std::vector<std::byte> stored(exact.size() * static_cast<std::size_t>(width(type_of(tensor))));
  encode(type_of(tensor), std::span<const double>(exact), std::span(stored));
  std::vector<Real> expected(exact.size()), found(exact.size());
  decode(type_of(tensor), stored, std::span(expected));
  saved.read(field, tensor.name, box, std::span(found));
  RC_ASSERT(found == expected);
}

Box random_box(const Shape& shape) {
  Box box(shape);
  for (int d = 0; d < shape.num_dims; ++d) {
    box[d].begin = draw(0, static_cast<int>(shape[d]));
    box[d].end = draw(static_cast<int>(box[d].begin), static_cast<int>(shape[d]));
  }
  return box;
}

// Reads everything that every rank of `to` holds, and some random boxes.
void expect_loads_as(const Checkpoint& saved, const Layout& to) {
  const RankIndex index(to);
  for (int rank = 0; rank < index.num_ranks(); ++rank)
    for (const auto& [t, box] : boxes_of(to, index, Rank{rank})) {
      const TensorInfo& tensor = to.tensors[static_cast<std::size_t>(t)];
      const StateField field = kStateFields[static_cast<std::size_t>(rank + t) % 3];
      expect_box<double>(saved, field, tensor, box);
      expect_box<float>(saved, field, tensor, random_box(tensor.shape));
    }
}

TEST(CheckpointProperty, LoadsAcrossLayouts) {
  const TemporaryFolder run;
  EXPECT_TRUE(holds("layouts", 100, [&] {
    const auto tensors = random_tensors();
    const Layout from = random_layout(tensors, first_ranks(draw(1, 9)));
    const Layout to = random_layout(tensors, first_ranks(draw(1, 9)));
    const Checkpoint saved = Checkpoint::open(save_as(from, run.path(), draw(0, 3), Bytes(draw(1, 400))));
    expect_loads_as(saved, to);
    NullSink events;
    saved.verify(events);
  }));
}

TEST(CheckpointProperty, LoadsAcrossPlans) {
  const TemporaryFolder run;
  EXPECT_TRUE(holds("plans", 20, [&] {
    const ModelSpec model = random_small_model();
    const random_plan::Limits limits{
        .most_stages = 3, .most_width = 4, .most_pipelines = 2, .most_microbatches = 2};
    const Layout from = layout_of(random_plan::plan_for(model, limits), model, StateKind::optimizer);
    const Layout to = layout_of(random_plan::plan_for(model, limits), model, StateKind::optimizer);
    expect_loads_as(Checkpoint::open(save_as(from, run.path(), 1, Bytes(1 << 20))), to);
  }));
}

TEST(BoxesToStore, BalancesWritersAmongReplicas) {
  Layout layout;
  layout.grids = {{4, 1, 1, first_ranks(4)}};
  for (int t = 0; t < 40; ++t) {
    layout.tensors.push_back({"t" + std::to_string(t), {t % 5 + 1}, 4, 0});
    layout.placements.push_back({{0, -1, {}}});
  }
  std::vector<std::int64_t> load;
  for (const auto& boxes : boxes_to_save(layout)) {
    load.push_back(0);
    for (const TensorBox& held : boxes) load.back() += held.box.num_elements();
  }
  EXPECT_EQ(std::accumulate(load.begin(), load.end(), std::int64_t{0}), 120);
  // the tolerance is the largest piece
  for (const std::int64_t one : load) EXPECT_NEAR(static_cast<double>(one), 30, 5);
}

TEST(Checkpoint, ContainsAllSavedState) {
  UnsyncedFileSystem files;
  const TemporaryFolder run;
  const SavedCheckpoint saved = value_or_throw(save_synthetic(files, run.path(), 5));
  EXPECT_EQ(saved.folder, run.path() / "checkpoints" / "step-5");
  expect_whole(saved.folder, 5);
  const Checkpoint checkpoint = Checkpoint::open(saved.folder);
  EXPECT_EQ(checkpoint.small_file("plan.json"), "{}\n");
  EXPECT_EQ(checkpoint.type_of(StateField::first, "bias"), ElementType::f64);
  EXPECT_EQ(checkpoint.find("bias")->shape, (Shape{5}));
  EXPECT_EQ(checkpoint.find("nothing"), nullptr);
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(saved.folder))
    names.insert(entry.path().filename());
  EXPECT_EQ(names, (std::set<std::string>{"manifest.json", "plan.json", "rank-00000.safetensors",
                                          "rank-00000-2.safetensors", "rank-00000-3.safetensors",
                                          "rank-00000-4.safetensors", "state.json"}));
}

TEST(Checkpoint, ConcurrentReads) {
  UnsyncedFileSystem files;
  const TemporaryFolder run;
  const Checkpoint saved = Checkpoint::open(value_or_throw(save_synthetic(files, run.path(), 5)).folder);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) threads.emplace_back([&] { expect_values(saved, 5); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Checkpoint, RejectsMissingTensorsAndFiles) {
  UnsyncedFileSystem files;
  const TemporaryFolder run;
  const Path folder = value_or_throw(save_synthetic(files, run.path(), 5)).folder;
  const Checkpoint saved = Checkpoint::open(folder);
  std::vector<float> out(8);
  const auto error_of = [&](const std::string& tensor, const Box& box) {
    return message_of([&] { saved.read(StateField::master, tensor, box, std::span(out)); });
  };
  EXPECT_EQ(error_of("biass", {{0, 5}}), folder.string() + ": the checkpoint has no tensor 'biass'");
  EXPECT_EQ(error_of("bias", {{0, 8}}),
            folder.string() + ": tensor 'bias' has shape [5], which does not contain box [0:8]");
  EXPECT_EQ(message_of([&] { saved.small_file("x"); }), folder.string() + ": the checkpoint has no file 'x'");
  EXPECT_EQ(message_of([&] { Checkpoint::open(run.path()); }),
            run.path().string() + " is not a checkpoint: it has no manifest.json");
  EXPECT_EQ(message_of([&] { Checkpoint::open(run / "absent"); }),
            (run / "absent").string() + " is not a checkpoint: it has no manifest.json");
}

std::string read_all(const Path& path) { return value_or_throw(read_file(path)); }

// The message from opening, verifying and reading a damaged checkpoint; "" if no damage is found.
std::string problem_with(const Path& folder) {
  return message_of([&] {
    NullSink events;
    Checkpoint::open(folder).verify(events);
  });
}

TEST(Checkpoint, DetectsFlippedBits) {
  UnsyncedFileSystem files;
  const TemporaryFolder run;
  const Path folder = value_or_throw(save_synthetic(files, run.path(), 5)).folder;
  EXPECT_EQ(problem_with(folder), "");
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string content = read_all(entry.path()), name = entry.path().filename();
    for (std::size_t at = 0; at < content.size(); at += content.size() / 7 + 1) {
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ 1 << at % 8);
      run.write("checkpoints/step-5/" + name, damaged);
      if (name == kManifestFile) {
        const std::string problem = problem_with(folder);  // some of its bits have no effect: white space
        EXPECT_TRUE(problem.empty() || problem.find(folder.string()) != std::string::npos) << problem;
        continue;
      }
      EXPECT_EQ(problem_with(folder).find(entry.path().string() + " is damaged: expected checksum "), 0u)
          << problem_with(folder);
      const Checkpoint saved = Checkpoint::open(folder);
      const std::string problem = message_of([&] {
        expect_values(saved, 5);
        saved.small_file("state.json"), saved.small_file("plan.json");
      });
      EXPECT_EQ(problem.find(entry.path().string() + " is damaged: expected checksum "), 0u) << problem;
    }
    run.write("checkpoints/step-5/" + name, content);
  }
  expect_whole(folder, 5);
}

TEST(Checkpoint, ReportsMissingAndTruncatedFiles) {
  UnsyncedFileSystem files;
  const TemporaryFolder run;
  const Path folder = value_or_throw(save_synthetic(files, run.path(), 5)).folder;
  const Path shard = folder / "rank-00000-2.safetensors";
  const std::string content = read_all(shard);
  std::filesystem::remove(shard);
  EXPECT_EQ(problem_with(folder),
            shard.string() + " is missing, although the checkpoint's manifest lists it");
  EXPECT_FALSE(newest_complete(run.path()));
  run.write("checkpoints/step-5/rank-00000-2.safetensors", content.substr(0, content.size() - 1));
  EXPECT_EQ(problem_with(folder),
            fmt::format("{} is damaged: expected {} bytes (as in the checkpoint's manifest), got {}",
                        shard.string(), content.size(), content.size() - 1));
  run.write("checkpoints/step-5/rank-00000-2.safetensors", content);
  EXPECT_EQ(problem_with(folder), "");
}

// The manifest is rewritten for a shard of another checkpoint: the checksum is right, but the tensors are
// not.
TEST(Checkpoint, ReportsShardWithoutItsPieces) {
  UnsyncedFileSystem files;
  const TemporaryFolder run;
  const Path folder = value_or_throw(save_synthetic(files, run.path(), 5)).folder;
  Manifest manifest = read_manifest(folder);
  std::swap(manifest.files[0], manifest.files[1]);
  run.write("checkpoints/step-5/manifest.json", manifest_text(manifest));
  const std::string problem = problem_with(folder);
  EXPECT_NE(problem.find(".safetensors: tensor 'master/"), std::string::npos) << problem;
  EXPECT_NE(problem.find("is missing, although the checkpoint's manifest lists it"), std::string::npos)
      << problem;
}

TEST(Checkpoint, RejectsIncompleteCommit) {
  UnsyncedFileSystem files;
  const TemporaryFolder run;
  const SyntheticPieces pieces = SyntheticPieces::whole(4, few_tensors());
  const auto commit = [&](std::span<const StatePiece> first, std::span<const StatePiece> second,
                          int num_writers) {
    const Path folder = value_or_throw(begin_checkpoint(files, run.path(), 4));
    value_or_throw(write_shards(files, folder, Rank{0}, first));
    value_or_throw(write_shards(files, folder, Rank{1}, second));
    const Outcome<Path> done = commit_checkpoint(files, folder, {num_writers, small_files(4)});
    abandon_checkpoint(files, folder);
    return done ? "" : done.error().why;
  };
  const auto all = pieces.pieces();
  EXPECT_NE(commit(all.first(3), all.subspan(4), 2).find("is not in any piece"), std::string::npos);
  EXPECT_NE(commit(all.first(4), all.subspan(3), 2).find("expected one piece, got 2"), std::string::npos);
  EXPECT_NE(commit(all.first(4), all.subspan(4), 3).find("rank-00002.json"), std::string::npos);
  EXPECT_EQ(list_checkpoints(run.path()).size(), 0u);
  EXPECT_EQ(commit(all.first(4), all.subspan(4), 2), "");
  expect_whole(run.path() / "checkpoints" / "step-4", 4);
}

// Each call of the file system fails once, as on a full disk.
TEST(CheckpointFailures, FullDiskKeepsLastCheckpoint) {
  UnsyncedFileSystem files;
  for (const std::int64_t step : {2, 1}) {  // a new step; a step that replaces an existing checkpoint
    const TemporaryFolder run;
    value_or_throw(save_synthetic(files, run.path(), 1));
    bool has_failed = true;
    for (int calls = 0; has_failed; ++calls) {
      ASSERT_LT(calls, 200);
      const bool is_new = !std::filesystem::exists(run.path() / "checkpoints" / fmt::format("step-{}", step));
      FailingFileSystem failing(calls);
      const auto saved = save_synthetic(failing, run.path(), step);
      has_failed = failing.has_failed();
      if (!saved) {
        EXPECT_NE(saved.error().why.find("No space left on device"), std::string::npos);
      }
      // A failed replacement may leave the old checkpoint under a temporary name; clear_leftovers restores
      // it.
      if (!is_new) value_or_throw(clear_leftovers(files, run.path()));
      ASSERT_TRUE(newest_complete(run.path())) << calls;
      const CheckpointEntry newest = *newest_complete(run.path());
      expect_whole(newest.folder, newest.step);
      for (const CheckpointEntry& entry : list_checkpoints(run.path()))
        EXPECT_TRUE(entry.is_whole) << entry.folder << " after " << calls;
    }
    EXPECT_EQ(newest_complete(run.path())->step, step);
  }
}

TEST(CheckpointFailures, ReportsDeletedFolder) {
  UnsyncedFileSystem files;
  const TemporaryFolder outer;
  const Path run = outer / "run";
  EXPECT_EQ(save_synthetic(files, run, 1).error().why,
            "cannot save into " + run.string() + ": the folder does not exist");
  std::filesystem::create_directory(run);
  const Path folder = value_or_throw(begin_checkpoint(files, run, 1));
  std::filesystem::remove_all(run);
  const SyntheticPieces pieces = SyntheticPieces::whole(1, few_tensors());
  const auto written = write_shards(files, folder, Rank{0}, pieces.pieces());
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().why.find("cannot create " + folder.string()), 0u) << written.error().why;
  const auto committed = commit_checkpoint(files, folder, {1, small_files(1)});
  ASSERT_FALSE(committed);
  EXPECT_NE(committed.error().why.find("No such file"), std::string::npos) << committed.error().why;
  abandon_checkpoint(files, folder);
}

// root may write everywhere, so a child process drops its privileges and reports the error message.
TEST(CheckpointFailures, ReportsReadOnlyFolder) {
  UnsyncedFileSystem files;
  const TemporaryFolder run;
  std::filesystem::create_directory(run / "checkpoints");
  for (const Path& path : {run.path(), run / "checkpoints"})
    std::filesystem::permissions(path, static_cast<std::filesystem::perms>(0555));
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && (::setgid(65534) != 0 || ::setuid(65534) != 0)) ::_exit(1);
    const auto saved = save_synthetic(files, run.path(), 1);
    const std::string reported = saved ? "" : saved.error().why;
    ::_exit(::write(pipe[1], reported.data(), reported.size()) == std::ssize(reported) ? 0 : 1);
  }
  ::close(pipe[1]);
  std::string reported(4096, '\0');
  const ssize_t size = ::read(pipe[0], reported.data(), reported.size());
  ::close(pipe[0]);
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  reported.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  EXPECT_EQ(reported.find("cannot create folder " + run.path().string()), 0u) << reported;
  EXPECT_NE(reported.find("Permission denied"), std::string::npos) << reported;
}

}  // namespace
}  // namespace optimus
