// Saves a checkpoint. All files are written into RUN/checkpoints/step-N.tmp-ID and synced, the manifest last;
// then the folder is renamed to step-N. A folder with that name is therefore always complete, and the remains
// of a killed save are recognizable by their name.
//
//   one rank                       every rank                             one rank
//   begin_checkpoint  ── folder ──>  write_shards (its own pieces)  ──all──>  commit_checkpoint
//
// No rank needs the data of another: the committing rank reads only the shard lists of the other ranks,
// which are small. Environment failures (full disk, lost folder) are Outcomes: a failed save does not end a
// run; call abandon_checkpoint(), continue, and try again later. Only one save per run may be in progress.
// Read next: checkpoint/checkpoints.h (retention), checkpoint/checkpoint.h (reading).
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

// One box of one field of a tensor to be stored. The values are not copied: they must not change until
// write_shards returns.
struct StatePiece {
  StateField field = StateField::master;
  std::string tensor;
  Shape shape;  // of the whole tensor
  Box box;
  ElementType type = ElementType::f32;  // a float type
  std::span<const std::byte> values;    // of the box, row-major, contiguous
};

// Removes the remains of killed saves (clear_leftovers() in checkpoints.h) and creates the temporary
// folder, whose path it returns.
Outcome<Path> begin_checkpoint(FileSystem& files, const Path& run, std::int64_t step);

struct ShardOptions {
  Bytes largest{std::int64_t{4} << 30};  // maximum size of one file's data; a single piece may be larger
};
// Writes the pieces of one rank in order into rank-00000.safetensors (followed by -2, -3, … if `largest` is
// exceeded), then the list of them. Returns the number of bytes written.
Outcome<Bytes> write_shards(FileSystem& files, const Path& folder, Rank rank,
                            std::span<const StatePiece> pieces, const ShardOptions& options = {});

struct CommitOptions {
  int num_writers = 1;             // ranks 0 … num_writers - 1 have called write_shards()
  std::vector<SmallFile> files{};  // must include state.json
};
// Writes the small files and the manifest, renames the folder to its final name, and returns the new path.
// Replaces an existing checkpoint of this step. Fails if the pieces do not cover every tensor exactly once.
Outcome<Path> commit_checkpoint(FileSystem& files, const Path& folder, const CommitOptions& options);

// Removes a temporary folder; ignores failures.
void abandon_checkpoint(FileSystem& files, const Path& folder);

struct SavedCheckpoint {
  Path folder;
  Bytes bytes;
};
// Performs all three steps for a run with one rank. Abandons the checkpoint after a failure.
Outcome<SavedCheckpoint> save_checkpoint(FileSystem& files, const Path& run, std::int64_t step,
                                         std::span<const StatePiece> pieces,
                                         std::vector<SmallFile> small_files,
                                         const ShardOptions& options = {});

// Determines the boxes that each rank stores, so that replicated data is stored once: of the ranks that
// hold an element, the one with the fewest elements assigned so far stores it. The result is indexed by
// rank; the boxes of a rank are sorted by tensor. Every rank computes the same result, at the cost of
// sync() in layout/sync.h. Throws a UserError if the layout is invalid.
std::vector<std::vector<TensorBox>> boxes_to_save(const Layout& layout);

// The assignment when some ranks are lost: other holders store their boxes, and boxes without a remaining
// holder are listed in `lost`.
struct SaveAssignment {
  std::vector<std::vector<TensorBox>> boxes;  // [rank]: boxes that it stores; empty for lost ranks
  std::vector<TensorBox> lost;                // sorted by tensor
};
// `is_present[rank]` is false if the rank is lost; ranks beyond the end of the vector are lost.
SaveAssignment boxes_to_save(const Layout& layout, const std::vector<bool>& is_present);

}  // namespace optimus
