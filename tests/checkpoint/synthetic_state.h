// Synthetic state for tests of saving: each value is a function of (seed, field, tensor, element), so any box
// can be computed independently and wrong values are detected.
#pragma once

#include <gtest/gtest.h>

#include "base/random.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/save.h"
#include "checkpoint/training_state.h"

namespace optimus {

inline std::vector<double> synthetic_values(std::int64_t seed, StateField field, const std::string& tensor,
                                            const Shape& shape, const Box& box) {
  std::vector<double> values(static_cast<std::size_t>(box.num_elements()));
  const RandomKey key = RandomKey(static_cast<std::uint64_t>(seed)).derive(text(field)).derive(tensor);
  fill_uniform(key, shape, box, std::span(values));
  return values;
}

// Pieces together with the memory that they refer to.
class SyntheticPieces {
 public:
  void add(std::int64_t seed, StateField field, const std::string& tensor, const Shape& shape, const Box& box,
           ElementType type) {
    const std::vector<double> values = synthetic_values(seed, field, tensor, shape, box);
    auto& bytes = memory_.emplace_back(values.size() * static_cast<std::size_t>(width(type)));
    encode(type, std::span<const double>(values), std::span(bytes));
    pieces_.push_back({field, tensor, shape, box, type, bytes});
  }
  // All fields of complete tensors.
  static SyntheticPieces whole(std::int64_t seed, const std::vector<CheckpointTensor>& tensors) {
    SyntheticPieces result;
    for (const CheckpointTensor& tensor : tensors)
      for (const StateField field : kStateFields)
        result.add(seed, field, tensor.name, tensor.shape, Box(tensor.shape), ElementType::f64);
    return result;
  }
  std::span<const StatePiece> pieces() const { return pieces_; }

 private:
  std::vector<std::vector<std::byte>> memory_;
  std::vector<StatePiece> pieces_;
};

inline const std::vector<CheckpointTensor>& few_tensors() {
  static const std::vector<CheckpointTensor> tensors{
      {"embedding", {37, 8}}, {"layers.0.q", {8, 8}}, {"bias", {5}}};
  return tensors;
}

inline std::vector<SmallFile> small_files(std::int64_t step) {
  return {{std::string(kTrainingStateFile), training_state_text({.step = step, .seed = 3})},
          {"plan.json", "{}\n"}};
}

inline Outcome<SavedCheckpoint> save_synthetic(FileSystem& files, const Path& run, std::int64_t step) {
  const SyntheticPieces pieces = SyntheticPieces::whole(step, few_tensors());
  return save_checkpoint(files, run, step, pieces.pieces(), small_files(step), {.largest = Bytes(3000)});
}

// Checks that every value of every field is that of the step; the tested types do not round.
inline void expect_values(const Checkpoint& saved, std::int64_t seed) {
  for (const CheckpointTensor& tensor : saved.manifest().tensors)
    for (const StateField field : kStateFields) {
      const Box box(tensor.shape);
      std::vector<double> values(static_cast<std::size_t>(box.num_elements()));
      saved.read(field, tensor.name, box, std::span(values));
      EXPECT_EQ(values, synthetic_values(seed, field, tensor.name, tensor.shape, box)) << tensor.name;
    }
}

inline void expect_whole(const Path& folder, std::int64_t step) {
  const Checkpoint saved = Checkpoint::open(folder);
  NullSink events;
  saved.verify(events);
  EXPECT_EQ(saved.step(), step);
  EXPECT_EQ(parse_training_state(saved.small_file(kTrainingStateFile), "state").step, step);
  expect_values(saved, step);
}

}  // namespace optimus
