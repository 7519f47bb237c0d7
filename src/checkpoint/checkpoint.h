// Reading a checkpoint: any box of any stored tensor, put together from whichever pieces hold it, so that any plan loads what
// any plan saved. Errors in the checkpoint are UserErrors that name file and tensor; nothing is guessed or repaired.
//
//   const Checkpoint saved = Checkpoint::open(find_checkpoint(run));
//   const TrainingState state = parse_training_state(saved.small_file(kTrainingStateFile), "state.json");
//   saved.read(StateField::master, "layers.0.attention.q.weight", my_box, std::span(values));
//
// Read next: checkpoint/checkpoints.h (which checkpoints a run has), checkpoint/training_state.h, checkpoint/save.h.
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

// when_read: the whole of a shard is checked against the manifest before the first value is taken from it.
enum class SumCheck { when_read, never };

// Many threads may read. Shards are mapped when they are first needed.
class Checkpoint {
 public:
  // A folder with a manifest, all files of which are there in their size. Throws UserError.
  static Checkpoint open(const Path& folder, SumCheck check = SumCheck::when_read);
  Checkpoint(Checkpoint&&) noexcept;
  ~Checkpoint();

  const Path& folder() const;
  const Manifest& manifest() const;
  std::int64_t step() const { return manifest().step; }
  // nullptr when there is none of this name.
  const CheckpointTensor* find(std::string_view tensor) const;
  // The type in which a tensor's field is stored.
  ElementType type_of(StateField field, std::string_view tensor) const;

  // The values of a box, row-major. out.size() == box.num_elements(). Throws UserError when the tensor or the field is not
  // stored, the box is not inside, or a shard is damaged.
  void read(StateField field, std::string_view tensor, const Box& box, std::span<float> out) const;
  void read(StateField field, std::string_view tensor, const Box& box, std::span<double> out) const;

  bool has_file(std::string_view name) const;
  // The content of a file that is no shard, checked against its sum. Throws UserError when there is none.
  std::string small_file(std::string_view name) const;

  // Reads every byte of every file. Throws UserError that names the first bad file.
  void verify(EventSink& events) const;

 private:
  struct State;
  explicit Checkpoint(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Throws UserError, naming the checkpoint and the tensor, when it is of another model.
void ensure_same_model(const Checkpoint& checkpoint, const ModelSpec& model);

}  // namespace optimus
