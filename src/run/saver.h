// Saves a running training: copies its state, which is all that the training waits for, and writes the copy on a thread while
// training goes on. A save that fails is reported and does not end the run. Of several ranks each writes its own boxes, no box
// twice, and the first puts the checkpoint together when all have written; every rank calls everything at the same place.
// Read next: checkpoint/save.h.
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
#include "run/agree.h"

namespace optimus {

struct SaveResult {
  SaveMetrics metrics;
  Outcome<SavedCheckpoint> saved;
};

// One thread calls.
class Saver {
 public:
  struct Target {
    FileSystem& files;
    Path run;
    Retention retention;
    std::vector<SmallFile> small_files;  // beside state.json
    std::optional<HostMemory>
        hosts{};  // of the plan's ranks: into their memory, not into files; training waits for it
  };
  // ranks: all of the plan; rank: this one. parameters must outlive the saver. Memory for the copy is taken at the first save.
  Saver(Target target, const Plan& plan, const ModelSpec& model, const Parameters& parameters,
        Agreement ranks = {nullptr, {}, Seconds(0)}, int rank = 0);
  ~Saver();  // waits for a save under way

  bool is_alone() const { return ranks_.is_alone(); }
  // What the first thinks: clocks differ.
  bool agree(bool is_due) const { return ranks_.any(is_due && ranks_.place() == 0, "whether to save"); }

  // Waits for a save under way (its result can be taken afterwards), copies the state and begins to write it.
  void begin(const TrainingState& state);
  // The result of a save that has ended, once; with wait, of one under way.
  std::optional<SaveResult> take_ended(bool wait);

  // When the run has failed, without the other ranks: ends this rank's writing, which comes to nothing;
  void end_writing();
  // and writes boxes that it holds as one of the writers of a checkpoint that somebody else begins and commits.
  Outcome<Bytes> write_part(const std::vector<HeldBox>& boxes, const Path& folder, Rank writer) const;

 private:
  struct Piece {
    StatePiece stored;
    at::Tensor source, copy;
  };
  Piece piece_of(const HeldBox& held, StateField field) const;
  struct UnderWay {
    TrainingState state;
    Seconds pause;
    Path folder;  // empty: it could not be made
    std::string why;
    struct Written {
      Outcome<Bytes> bytes;
      Seconds seconds;
      std::optional<Outcome<Path>> put_together;  // by a rank that is alone
    };
    std::future<Written> written;
  };
  void keep_on_hosts(const TrainingState& state);
  void make_pieces();
  SaveResult finish();
  Outcome<SavedCheckpoint> commit(const UnderWay& save, const UnderWay::Written& own);
  Outcome<Path> put_together(const TrainingState& state, const Path& folder);

  const Target target_;
  const Layout layout_;
  const Parameters& parameters_;
  std::vector<Piece> pieces_;
  std::vector<StatePiece> stored_;
  const int rank_;
  const Agreement ranks_;
  std::optional<UnderWay> under_way_;
  std::optional<SaveResult> ended_;
};

// Fills masters and, unless only weights are wanted, moments from a checkpoint of the same model, whatever plan saved it; copies for
// other devices, too.
// Throws UserError when it is of another model.
enum class Restored { everything, weights };
void restore(const Checkpoint& checkpoint, const ModelSpec& model, Restored what, Parameters& parameters);

}  // namespace optimus
