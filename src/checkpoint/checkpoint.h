// Checkpoint: reads any box of any stored tensor and assembles it from all pieces that contain parts of it.
// So any plan can load the checkpoints of any other plan. Errors in the checkpoint throw UserError with the
// file and the tensor. Errors are never repaired.
//
//   const Checkpoint saved = Checkpoint::open(find_checkpoint(run));
//   const TrainingState state = parse_training_state(saved.small_file(kTrainingStateFile), "state.json");
//   saved.read(StateField::master, "layers.0.attention.q.weight", my_box, std::span(values));
//
// Read next: checkpoint/checkpoints.h (the checkpoints of a run), checkpoint/training_state.h,
// checkpoint/save.h.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/event.h"
#include "checkpoint/element.h"
#include "checkpoint/manifest.h"
#include "model/tensors.h"

namespace optimus {

// With when_read, the checksum of a whole shard is verified before its first value is used.
enum class ChecksumCheck { when_read, never };

// Thread-safe. Shards are memory-mapped at first use.
class Checkpoint {
 public:
  // Opens a checkpoint folder. Throws UserError if the folder has no valid manifest, or if a file in the
  // manifest is missing or has the wrong size.
  static Checkpoint open(const Path& folder, ChecksumCheck check = ChecksumCheck::when_read);
  Checkpoint(Checkpoint&&) noexcept;
  ~Checkpoint();

  const Path& folder() const;
  const Manifest& manifest() const;
  std::int64_t step() const { return manifest().step; }
  // Returns nullptr if there is no tensor with this name.
  const CheckpointTensor* find(std::string_view tensor) const;
  // The element type in which a field of a tensor is stored.
  ElementType type_of(StateField field, std::string_view tensor) const;

  // Reads the values of `box` in row-major order. out.size() must be box.num_elements(). Throws UserError if
  // the tensor or the field is not stored, the box is outside the tensor, or a shard is damaged.
  void read(StateField field, std::string_view tensor, const Box& box, std::span<float> out) const;
  void read(StateField field, std::string_view tensor, const Box& box, std::span<double> out) const;

  bool has_file(std::string_view name) const;
  // Reads a file that is not a shard and verifies its checksum. Throws ReportedError if it does not exist or
  // is damaged.
  std::string small_file(std::string_view name) const;

  // Verifies every byte of every file. Throws RuntimeFailure with the name of the first damaged file.
  void verify(EventSink& events) const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Throws UserError with the checkpoint and the tensor if the checkpoint belongs to a different model.
void ensure_same_model(const Checkpoint& checkpoint, const ModelSpec& model);

}  // namespace optimus
