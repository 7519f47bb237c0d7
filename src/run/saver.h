// Saves checkpoints of a running training. It copies the state while training waits, and writes the copy on a
// separate thread while training continues. A failed save is reported and does not end the run. With several
// ranks, each rank writes its own boxes, so that no box is written twice. The first rank assembles the
// checkpoint when all ranks have finished writing. All ranks must make the same calls in the same order. Read
// next: checkpoint/save.h.
#pragma once

#include <future>
#include <optional>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/save.h"
#include "checkpoint/training_state.h"
#include "elastic/host_memory.h"
#include "engine/parameters.h"
#include "observe/metrics.h"
#include "run/rank_agreement.h"

namespace optimus {

struct SaveResult {
  SaveMetrics metrics;
  Outcome<SavedCheckpoint> saved;
};

// Not thread-safe.
class Saver {
 public:
  struct Target {
    FileSystem& files;
    Path run;
    Retention retention;
    std::vector<SmallFile> small_files;  // in addition to state.json
    // If set, state is saved to the hosts' memory instead of files, while training waits.
    std::optional<HostMemory> hosts{};
  };
  // `ranks` are all ranks that the plan uses, and `rank` is this rank. `parameters` must outlive the saver.
  // The memory for the copy is allocated at the first save.
  Saver(Target target, const Plan& plan, const ModelSpec& model, const Parameters& parameters,
        Agreement ranks = {nullptr, {}, Seconds(0)}, int rank = 0);
  ~Saver();  // waits for a save in progress

  bool is_alone() const { return ranks_.is_alone(); }
  // Decides whether to save. Returns the first rank's `is_due` on all ranks, because their clocks differ.
  bool agree(bool is_due) const { return ranks_.any(is_due && ranks_.rank_index() == 0, "whether to save"); }

  // Waits for a save in progress, then copies the state and starts to write it. The result of the earlier
  // save can be taken afterwards.
  void begin(const TrainingState& state);
  // Returns the result of each completed save once. If `wait` is true, first waits for a save in progress.
  std::optional<SaveResult> take_result(bool wait);

  // Called when the run has failed. Does not need the other ranks. Waits until this rank has stopped writing
  // and discards the save.
  void end_writing();
  // Writes the given boxes, which this rank must own, as one of the writers of an emergency checkpoint that
  // another process starts and commits.
  Outcome<Bytes> write_part(const std::vector<TensorBox>& boxes, const Path& folder, Rank writer) const;

 private:
  struct Piece {
    StatePiece stored;
    at::Tensor source, copy;
  };
  Piece piece_of(const TensorBox& tensor_box, StateField field) const;
  struct SaveInProgress {
    TrainingState state;
    Seconds pause;
    Path folder;  // empty if it could not be created
    std::string why;
    struct WriteResult {
      Outcome<Bytes> bytes;
      Seconds seconds;
      std::optional<Outcome<Path>> assemble_checkpoint;  // set if this is the only rank
    };
    std::future<WriteResult> write_result;
  };
  void save_to_hosts(const TrainingState& state);
  void make_pieces();
  SaveResult finish();
  Outcome<SavedCheckpoint> commit(const SaveInProgress& save, const SaveInProgress::WriteResult& own);
  Outcome<Path> assemble_checkpoint(const TrainingState& state, const Path& folder);

  const Target target_;
  const Layout layout_;
  const Parameters& parameters_;
  std::vector<Piece> pieces_;
  std::vector<StatePiece> stored_;
  const int rank_;
  const Agreement ranks_;
  std::optional<SaveInProgress> in_progress_;
  std::optional<SaveResult> ended_result_;
};

// Fills master weights and, unless only weights are requested, moments from a checkpoint of the same model,
// regardless of the plan that saved it. This includes the redundant copies that this device stores for other
// devices. Throws UserError if the checkpoint belongs to another model.
enum class Restored { everything, weights };
void restore(const Checkpoint& checkpoint, const ModelSpec& model, Restored selection,
             Parameters& parameters);

}  // namespace optimus
