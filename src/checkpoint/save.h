// Saves a checkpoint. All files are written to RUN/checkpoints/step-N.tmp-ID and synced; the manifest is
// written last. The folder is then renamed to step-N. So a folder with that name is always complete, and the
// remains of a killed save can be recognized by their name.
//
//   one rank                       every rank                             one rank
//   begin_checkpoint  ── folder ──>  write_shards (its own pieces)  ──all──>  commit_checkpoint
//
// No rank needs the data of another rank. The committing rank reads only the small shard lists of the other
// ranks. Environment failures (full disk, lost folder) are returned as Outcomes, because a failed save does
// not end a run. In this case, call abandon_checkpoint(), continue, and try again later. Only one save per
// run may be in progress. Read next: checkpoint/checkpoints.h (retention), checkpoint/checkpoint.h (reading).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/box.h"
#include "base/file.h"
#include "checkpoint/element.h"
#include "checkpoint/manifest.h"
#include "checkpoint/small_file.h"
#include "layout/layout.h"

namespace optimus {

// One box of one field of a tensor that should be stored. The values are not copied, so they must not change
// until write_shards() returns.
struct StatePiece {
  StateField field = StateField::master;
  std::string tensor;
  Shape shape;  // of the whole tensor
  Box box;
  ElementType type = ElementType::f32;  // a float type
  std::span<const std::byte> values;    // of the box, row-major, contiguous
};

// Removes the remains of killed saves (clear_leftovers() in checkpoints.h), creates the temporary folder, and
// returns its path.
Outcome<Path> begin_checkpoint(FileSystem& files, const Path& run, std::int64_t step);

struct ShardOptions {
  Bytes largest{
      std::int64_t{4} << 30};  // maximum size of a file's data; a file with a single piece may be larger
};
// Writes the pieces of one rank to rank-00000.safetensors (and to further files -2, -3, … if `largest` is
// exceeded), then their list. Returns the number of bytes written.
Outcome<Bytes> write_shards(FileSystem& files, const Path& folder, Rank rank,
                            std::span<const StatePiece> pieces, const ShardOptions& options = {});

struct CommitOptions {
  int num_writers = 1;             // ranks 0 … num_writers - 1 have called write_shards()
  std::vector<SmallFile> files{};  // must include state.json
};
// Writes the small files and the manifest, renames the folder to its final name, and returns the new path.
// Replaces an existing checkpoint for this step. Fails if the pieces do not cover every tensor exactly once.
Outcome<Path> commit_checkpoint(FileSystem& files, const Path& folder, const CommitOptions& options);

// Removes a temporary folder. Ignores failures.
void abandon_checkpoint(FileSystem& files, const Path& folder);

struct SavedCheckpoint {
  Path folder;
  Bytes bytes;
};
// Begins, writes and commits a checkpoint for a run with one rank. Abandons the checkpoint if a step fails.
Outcome<SavedCheckpoint> save_checkpoint(FileSystem& files, const Path& run, std::int64_t step,
                                         std::span<const StatePiece> pieces,
                                         std::vector<SmallFile> small_files,
                                         const ShardOptions& options = {});

// Determines the boxes that each rank stores, so that replicated data is stored only once. Of the ranks that
// hold an element, the rank with the fewest assigned elements so far stores it. The result is indexed by
// rank, and the boxes of a rank are sorted by tensor. All ranks compute the same result. The cost is similar
// to that of sync() in layout/sync.h. Throws UserError if the layout is invalid.
std::vector<std::vector<TensorBox>> boxes_to_save(const Layout& layout);

// The assignment of boxes to ranks when some ranks are lost. Other ranks that hold the boxes of lost ranks
// store them. Boxes that no remaining rank holds are listed in `lost`.
struct SaveAssignment {
  std::vector<std::vector<TensorBox>> boxes;  // [rank]: boxes that it stores; empty for lost ranks
  std::vector<TensorBox> lost;                // sorted by tensor
};
// `is_present[rank]` is false if the rank is lost. Ranks beyond the end of the vector are also lost.
SaveAssignment boxes_to_save(const Layout& layout, const std::vector<bool>& is_present);

}  // namespace optimus
