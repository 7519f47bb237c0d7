// Checkpoint: reads any box of any stored tensor, assembled from all pieces that contain parts of it, so
// that any plan can load the checkpoints of any other plan. Errors in the checkpoint are UserErrors that name
// the file and the tensor; nothing is guessed or repaired.
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

// when_read: the checksum of a whole shard is verified before its first value is used.
enum class ChecksumCheck { when_read, never };

// Thread-safe. Shards are memory-mapped at first use.
class Checkpoint {
 public:
  // Opens a checkpoint folder. Throws a UserError unless the folder has a valid manifest and all files that
  // the manifest lists exist with the right size.
  static Checkpoint open(const Path& folder, ChecksumCheck check = ChecksumCheck::when_read);
  Checkpoint(Checkpoint&&) noexcept;
  ~Checkpoint();

  const Path& folder() const;
  const Manifest& manifest() const;
  std::int64_t step() const { return manifest().step; }
  // nullptr if there is no tensor of this name.
  const CheckpointTensor* find(std::string_view tensor) const;
  // The type in which a field of a tensor is stored.
  ElementType type_of(StateField field, std::string_view tensor) const;

  // Reads the values of `box`, row-major; out.size() must be box.num_elements(). Throws a UserError if the
  // tensor or the field is not stored, the box is outside the tensor, or a shard is damaged.
  void read(StateField field, std::string_view tensor, const Box& box, std::span<float> out) const;
  void read(StateField field, std::string_view tensor, const Box& box, std::span<double> out) const;

  bool has_file(std::string_view name) const;
  // The content of a file that is not a shard, checked against its checksum. Throws a ReportedError if it
  // does not exist.
  std::string small_file(std::string_view name) const;

  // Verifies every byte of every file. Throws a RuntimeFailure that names the first damaged file.
  void verify(EventSink& events) const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Throws a UserError that names the checkpoint and the tensor if the checkpoint belongs to a different
// model.
void ensure_same_model(const Checkpoint& checkpoint, const ModelSpec& model);

}  // namespace optimus
