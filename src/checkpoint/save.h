// Saving a checkpoint. Everything is written into RUN/checkpoints/step-N.tmp-ID and synced; the manifest comes last; then
// the folder gets its name, step-N. So a folder of that name is whole from its first instant on, and what a killed save left
// is known by its name.
//
//   one rank                       every rank                             one rank
//   begin_checkpoint  ── folder ──>  write_shards (its own pieces)  ──all──>  commit_checkpoint
//
// No rank sees the bytes of another: the one that commits reads the others' lists of what they wrote, which are small.
// The world's failures (full disk, lost folder) are Outcomes: a save that failed does not end a run; call
// abandon_checkpoint, go on, and try again later. Nothing here may run twice at a time for one run.
// Read next: checkpoint/checkpoints.h (what to keep), checkpoint/checkpoint.h (reading).
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

// One box of one field of a tensor, to be stored. The values are not copied: they must not change until write_shards
// returns.
struct StatePiece {
  StateField field = StateField::master;
  std::string tensor;
  Shape shape;  // of the whole tensor
  Box box;
  ElementType type = ElementType::f32;  // a float type
  std::span<const std::byte> values;    // of the box, row-major, contiguous
};

// Removes what killed saves have left (checkpoints.h, clear_leftovers) and makes the temporary folder.
Outcome<Path> begin_checkpoint(FileSystem& files, const Path& run, std::int64_t step);

struct ShardOptions {
  Bytes largest{std::int64_t{4} << 30};  // of data in one file; a single piece may be larger
};
// Writes the pieces of one rank, in their order, into rank-00000.safetensors (and -2, -3, … behind `largest`), then the list
// of them. Gives the number of bytes written.
Outcome<Bytes> write_shards(FileSystem& files, const Path& folder, Rank rank,
                            std::span<const StatePiece> pieces, const ShardOptions& options = {});

struct CommitOptions {
  int num_writers = 1;             // ranks 0 … that have called write_shards
  std::vector<SmallFile> files{};  // state.json must be among them
};
// Writes the small files and the manifest and gives the folder its name, which is returned. A checkpoint of this step that
// exists is replaced. Fails when the pieces do not cover every tensor exactly once.
Outcome<Path> commit_checkpoint(FileSystem& files, const Path& folder, const CommitOptions& options);

// Removes a temporary folder, as far as that can be done.
void abandon_checkpoint(FileSystem& files, const Path& folder);

struct SavedCheckpoint {
  Path folder;
  Bytes bytes;
};
// All three, for a run of one rank; what failed is abandoned.
Outcome<SavedCheckpoint> save_checkpoint(FileSystem& files, const Path& run, std::int64_t step,
                                         std::span<const StatePiece> pieces,
                                         std::vector<SmallFile> small_files,
                                         const ShardOptions& options = {});

// Which boxes each rank stores, when what many hold is to be stored once: an element's writer is the one of its holders
// that has the least to store so far. [rank], by tensor. The same on every rank. O(as layout/sync.h). Throws UserError when the layout is not
// valid.
std::vector<std::vector<HeldBox>> boxes_to_store(const Layout& layout);

// The same where some ranks are gone: what others hold of theirs is stored by those, and what nobody has is listed.
struct StorePlan {
  std::vector<std::vector<HeldBox>> boxes;  // [rank]; none of those that are gone
  std::vector<HeldBox> lost;                // by tensor
};
// is_there: [rank]; ranks behind its end are gone.
StorePlan boxes_to_store(const Layout& layout, const std::vector<bool>& is_there);

}  // namespace optimus
