// Implements save.h.
#include "checkpoint/save.h"

#include <algorithm>
#include <map>
#include <optional>

#include "base/json.h"
#include "checkpoint/checkpoints.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/step_folder.h"
#include "checkpoint/training_state.h"
#include "layout/sync.h"

namespace optimus {
namespace {

namespace fs = std::filesystem;

StepFolder step_folder(const Path& folder) {
  const auto result = parse_step_folder(folder);
  ensure(result && result->is_temporary, "{} was not created by begin_checkpoint", folder.string());
  return *result;
}

std::string list_name(int rank) { return fmt::format("rank-{:05}.json", rank); }

std::string shard_name(Rank rank, int number) {
  if (number == 1) return fmt::format("rank-{:05}.safetensors", rank.value);
  return fmt::format("rank-{:05}-{}.safetensors", rank.value, number);
}

TensorHeader header_of(const StatePiece& piece) {
  TensorHeader header{stored_name(piece.field, piece.tensor, piece.box), piece.type, {}};
  for (int d = 0; d < piece.box.num_dims; ++d) header.shape.push_back(piece.box[d].size());
  ensure(is_float(piece.type) && piece.box.num_dims == piece.shape.num_dims &&
             Box(piece.shape).contains(piece.box) && !piece.box.is_empty(),
         "{} cannot be stored as box {} of {} with type {}", piece.tensor, text(piece.box), text(piece.shape),
         text(piece.type));
  ensure(std::ssize(piece.values) == header.num_bytes(), "{}: {} bytes do not match box {} of type {}",
         piece.tensor, piece.values.size(), text(piece.box), text(piece.type));
  return header;
}

// The metadata of a shard contains the shapes of the whole tensors. Their boxes are part of the names of the
// stored tensors.
SafetensorsMetadata metadata_of(std::span<const StatePiece> pieces) {
  std::map<std::string, std::string> texts;
  for (const StatePiece& piece : pieces) texts.emplace(piece.tensor, text(piece.shape));
  std::string shapes;
  for (const auto& [tensor, shape] : texts)
    shapes += fmt::format("{}{}: {}", shapes.empty() ? "" : ", ", Json(tensor).dump(), shape);
  return {{"format", "optimus-checkpoint"}, {"shapes", "{" + shapes + "}"}};
}

// The number of pieces that fit in the next file.
std::size_t num_pieces_of_shard(std::span<const StatePiece> pieces, Bytes largest) {
  std::int64_t bytes = 0;
  std::size_t count = 0;
  while (count < pieces.size()) {
    bytes += std::ssize(pieces[count].values);
    if (count > 0 && bytes > largest.value) break;
    ++count;
  }
  return count;
}

Outcome<CheckpointFile> write_shard(FileSystem& files, const Path& path, std::span<const StatePiece> pieces) {
  std::vector<TensorHeader> headers;
  for (const StatePiece& piece : pieces) headers.push_back(header_of(piece));
  ChecksummingFileSystem checksumming(files);
  Outcome<SafetensorsWriter> writer =
      SafetensorsWriter::create(checksumming, path, headers, metadata_of(pieces));
  if (!writer) return tl::unexpected(writer.error());
  for (const StatePiece& piece : pieces)
    if (Outcome<void> outcome = writer->write(piece.values); !outcome) return tl::unexpected(outcome.error());
  if (Outcome<void> outcome = writer->commit(); !outcome) return tl::unexpected(outcome.error());
  return CheckpointFile{path.filename().string(), Bytes(writer->size()), checksumming.sum()};
}

void append_pieces(std::span<const StatePiece> pieces, int file, Manifest& list,
                   std::map<std::string, int>& tensor_index) {
  for (const StatePiece& piece : pieces) {
    const auto [entry, is_new] = tensor_index.emplace(piece.tensor, static_cast<int>(list.tensors.size()));
    if (is_new) list.tensors.push_back({piece.tensor, piece.shape});
    list.pieces.push_back({piece.field, entry->second, piece.box, file});
  }
}

Outcome<Manifest> merge_shard_lists(const Path& folder, int num_writers) {
  try {
    std::vector<Manifest> lists;
    for (int rank = 0; rank < num_writers; ++rank) {
      const Path path = folder / list_name(rank);
      const Outcome<std::string> content = read_file(path);
      if (!content) return tl::unexpected(content.error());
      lists.push_back(parse_shard_list(*content, path.string()));
    }
    return merge(lists, folder.string());
  } catch (const ReportedError& error) {
    return failure("{}", error.what());
  }
}

Outcome<void> write_manifest(FileSystem& files, const Path& folder, Manifest manifest,
                             const std::vector<SmallFile>& small_files) {
  for (const SmallFile& file : small_files) {
    if (Outcome<void> outcome = write_atomically(files, folder / file.name, file.content); !outcome)
      return outcome;
    manifest.files.push_back({file.name, Bytes(std::ssize(file.content)), checksum(file.content)});
  }
  try {
    make_valid(manifest, folder.string());
  } catch (const UserError& error) {
    return failure("{}", error.what());
  }
  return write_atomically(files, folder / kManifestFile, manifest_text(manifest));
}

// An existing checkpoint for this step is first renamed to a temporary name. If the process is killed between
// the two renames, both checkpoints are complete but have temporary names. clear_leftovers() then renames one
// of them to the final name.
Outcome<void> rename_to_final(FileSystem& files, const StepFolder& folder) {
  const Path name = folder.final_path(), parent = name.parent_path();
  const Path replaced = temporary_step_folder(parent, folder.step).path;
  std::error_code error;
  const bool is_taken = fs::exists(name, error);
  if (is_taken)
    if (Outcome<void> outcome = files.rename(name, replaced); !outcome) return outcome;
  if (Outcome<void> outcome = files.rename(folder.path, name); !outcome) {
    if (is_taken) (void)files.rename(replaced, name);
    return outcome;
  }
  Outcome<void> synced = files.sync_folder(parent);
  if (is_taken && synced)
    (void)remove_checkpoint(files, replaced);  // if this fails, the next save removes it
  return synced;
}

}  // namespace

Outcome<Path> begin_checkpoint(FileSystem& files, const Path& run, std::int64_t step) {
  ensure(step >= 0, "step of the checkpoint: expected at least 0, got {}", step);
  std::error_code error;
  if (!fs::is_directory(run, error))
    return failure("cannot save into {}: the folder does not exist", run.string());
  if (Outcome<void> outcome = clear_leftovers(files, run); !outcome) return tl::unexpected(outcome.error());
  const Path folder = temporary_step_folder(run / kCheckpointsFolder, step).path;
  if (Outcome<void> outcome = files.create_folders(folder); !outcome) return tl::unexpected(outcome.error());
  if (Outcome<void> outcome = files.sync_folder(run); !outcome) {
    abandon_checkpoint(files, folder);
    return tl::unexpected(outcome.error());
  }
  return folder;
}

Outcome<Bytes> write_shards(FileSystem& files, const Path& folder, Rank rank,
                            std::span<const StatePiece> pieces, const ShardOptions& options) {
  Manifest list;
  list.step = step_folder(folder).step;
  std::map<std::string, int> tensor_index;
  while (!pieces.empty()) {
    const auto shard_pieces = pieces.first(num_pieces_of_shard(pieces, options.largest));
    const int file = static_cast<int>(list.files.size());
    Outcome<CheckpointFile> shard_file =
        write_shard(files, folder / shard_name(rank, file + 1), shard_pieces);
    if (!shard_file) return tl::unexpected(shard_file.error());
    list.files.push_back(std::move(*shard_file));
    append_pieces(shard_pieces, file, list, tensor_index);
    pieces = pieces.subspan(shard_pieces.size());
  }
  if (Outcome<void> outcome = write_atomically(files, folder / list_name(rank.value), shard_list_text(list));
      !outcome)
    return tl::unexpected(outcome.error());
  return list.bytes();
}

Outcome<Path> commit_checkpoint(FileSystem& files, const Path& folder, const CommitOptions& options) {
  ensure(std::any_of(options.files.begin(), options.files.end(),
                     [](const SmallFile& file) { return file.name == kTrainingStateFile; }),
         "a checkpoint requires the file {}", kTrainingStateFile);
  Outcome<Manifest> manifest = merge_shard_lists(folder, options.num_writers);
  if (!manifest) return tl::unexpected(manifest.error());
  if (Outcome<void> outcome = write_manifest(files, folder, std::move(*manifest), options.files); !outcome)
    return tl::unexpected(outcome.error());
  for (int rank = 0; rank < options.num_writers; ++rank) (void)files.remove(folder / list_name(rank));
  const StepFolder temporary = step_folder(folder);
  if (Outcome<void> outcome = rename_to_final(files, temporary); !outcome)
    return tl::unexpected(outcome.error());
  return temporary.final_path();
}

void abandon_checkpoint(FileSystem& files, const Path& folder) { (void)remove_checkpoint(files, folder); }

Outcome<SavedCheckpoint> save_checkpoint(FileSystem& files, const Path& run, std::int64_t step,
                                         std::span<const StatePiece> pieces,
                                         std::vector<SmallFile> small_files, const ShardOptions& options) {
  Outcome<Path> folder = begin_checkpoint(files, run, step);
  if (!folder) return tl::unexpected(folder.error());
  Outcome<Bytes> bytes = write_shards(files, *folder, Rank{0}, pieces, options);
  Outcome<Path> final_path = bytes ? commit_checkpoint(files, *folder, {1, std::move(small_files)})
                                   : Outcome<Path>(tl::unexpected(bytes.error()));
  if (!final_path) {
    abandon_checkpoint(files, *folder);
    return tl::unexpected(final_path.error());
  }
  return SavedCheckpoint{*final_path, *bytes};
}

SaveAssignment boxes_to_save(const Layout& layout, const std::vector<bool>& is_present) {
  const SyncPlan plan = sync(layout);
  SaveAssignment result;
  result.boxes.resize(static_cast<std::size_t>(num_ranks(layout)));
  std::vector<std::int64_t> load(result.boxes.size());
  for (const Reduction& reduction : plan.reductions) {
    const Box& box = plan.boxes[static_cast<std::size_t>(reduction.box)];
    std::optional<std::size_t> writer;
    for (const Rank holder : plan.groups[static_cast<std::size_t>(reduction.group)]) {
      const auto rank = static_cast<std::size_t>(holder.value);
      if (rank < is_present.size() && is_present[rank] && (!writer || load[rank] < load[*writer]))
        writer = rank;
    }
    if (!writer) {
      result.lost.push_back({reduction.tensor, box});
      continue;
    }
    result.boxes[*writer].push_back({reduction.tensor, box});
    load[*writer] += box.num_elements();
  }
  return result;
}

std::vector<std::vector<TensorBox>> boxes_to_save(const Layout& layout) {
  return boxes_to_save(layout, std::vector<bool>(static_cast<std::size_t>(num_ranks(layout)), true)).boxes;
}

}  // namespace optimus
