// Benchmarks checkpoints; checkpoint_bench.py compares it with Python libraries.
//
//   bench_checkpoint manifest
//       the manifest of a model with 405 billion parameters on 16,384 ranks: times to write and read
//   bench_checkpoint save|load FOLDER MIB [nosync|nosum]
//       one save or load of a synthetic state of MIB MiB (masters and moments of square matrices); prints the
//       seconds. nosync: no fsync, as in the Python libraries; nosum: the load does not verify checksums
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/save.h"
#include "checkpoint/training_state.h"
#include "tests/base/unsynced_file_system.h"

namespace optimus {
namespace {

constexpr std::int64_t kSide = 1024;  // one matrix has 4 MiB

struct Buffer {
  StateField field;
  std::string tensor;
  std::vector<float> values;
};

std::vector<Buffer> buffers(std::int64_t mebibytes) {
  std::vector<Buffer> result;
  for (std::int64_t i = 0; i < mebibytes / 4; ++i) {
    auto& buffer = result.emplace_back(
        Buffer{kStateFields[static_cast<std::size_t>(i) % 3], fmt::format("layers.{}.weight", i / 3), {}});
    buffer.values.resize(kSide * kSide);
    for (std::size_t k = 0; k < buffer.values.size(); ++k)
      buffer.values[k] = static_cast<float>(k) * 1e-7F + static_cast<float>(i);
  }
  return result;
}

double seconds_of(auto action) {
  const auto begin_time = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_time).count();
}

double save(const Path& folder, const std::vector<Buffer>& state, FileSystem& files) {
  std::vector<StatePiece> pieces;
  const Shape shape{kSide, kSide};
  for (const Buffer& buffer : state)
    pieces.push_back({buffer.field, buffer.tensor, shape, Box(shape), ElementType::f32,
                      std::as_bytes(std::span(buffer.values))});
  return seconds_of([&] {
    value_or_throw(save_checkpoint(files, folder, 1, pieces,
                                   {{std::string(kTrainingStateFile), training_state_text({.step = 1})}}));
  });
}

// Reads into allocated memory, as a run does with its parameters.
double load(const Path& folder, std::vector<Buffer>& state, ChecksumCheck check) {
  for (Buffer& buffer : state) std::fill(buffer.values.begin(), buffer.values.end(), 0.0F);
  const double seconds = seconds_of([&] {
    const Checkpoint saved = Checkpoint::open(find_checkpoint(folder), check);
    for (Buffer& buffer : state)
      saved.read(buffer.field, buffer.tensor, Box(Shape{kSide, kSide}), std::span(buffer.values));
  });
  for (std::size_t i = 0; i < state.size(); ++i)
    ensure(state[i].values[0] == static_cast<float>(i), "matrix {} begins with {}", i, state[i].values[0]);
  return seconds;
}

// 1134 tensors in 16 stages, each tensor cut into 8 parts and 128 shards, three fields per box.
void manifest_at_scale() {
  Manifest manifest;
  constexpr int kTensors = 1134, kStages = 16, kParts = 8, kShards = 128;
  for (int rank = 0; rank < kStages * kParts * kShards; ++rank)
    manifest.files.push_back({fmt::format("rank-{:05}.safetensors", rank), Bytes(1 << 30), {}});
  for (int t = 0; t < kTensors; ++t) {
    manifest.tensors.push_back({fmt::format("layers.{}.mlp.gate.weight.{}", t / 9, t % 9), {16384, 16384}});
    for (int i = 0; i < kParts * kShards; ++i) {
      const std::int64_t part = i % kParts, shard = i / kParts;
      for (const StateField field : kStateFields)
        manifest.pieces.push_back({field,
                                   t,
                                   {{shard * 128, shard * 128 + 128}, {part * 2048, part * 2048 + 2048}},
                                   t / (kTensors / kStages + 1) * kParts * kShards + i});
    }
  }
  std::string text;
  const double check = seconds_of([&] { make_valid(manifest, "bench"); });
  const double write = seconds_of([&] { text = manifest_text(manifest); });
  const double read = seconds_of([&] { ensure(parse_manifest(text, "bench") == manifest, "not equal"); });
  fmt::print("{} pieces: {:.1f} MB; check {:.1f} s, write {:.1f} s, read and check {:.1f} s\n",
             manifest.pieces.size(), static_cast<double>(text.size()) / 1e6, check, write, read);
}

int run(int count, char** words) {
  if (count == 2 && words[1] == std::string("manifest")) return manifest_at_scale(), 0;
  const std::string what = count > 3 ? words[1] : "", how = count > 4 ? words[4] : "";
  if (what != "save" && what != "load") {
    fmt::print(stderr, "usage: bench_checkpoint manifest | save|load FOLDER MIB [nosync|nosum]\n");
    return 2;
  }
  const Path folder = words[2];
  std::vector<Buffer> state = buffers(std::stoll(words[3]) / 12 * 12);
  RealFileSystem real;
  UnsyncedFileSystem unsynced;
  const double seconds =
      what == "save" ? save(folder, state, how == "nosync" ? static_cast<FileSystem&>(unsynced) : real)
                     : load(folder, state, how == "nosum" ? ChecksumCheck::never : ChecksumCheck::when_read);
  fmt::print("{}\n", seconds);
  return 0;
}

}  // namespace
}  // namespace optimus

int main(int count, char** words) { return optimus::run(count, words); }
