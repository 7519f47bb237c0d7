// The manifest of a checkpoint lists its files and the location of every box of every tensor. It is written
// last, so a folder is a checkpoint if and only if it has a valid manifest. docs/use/checkpoints.md describes
// the file.
//
// A checkpoint stores the optimizer state: master weights and the two moments of Adam. Working weights are
// not stored, because they are the rounded master weights. Tensors are the canonical logical tensors of
// model/tensors.h. Each may be split into any boxes, so a checkpoint can be loaded with any plan. Read next:
// checkpoint/save.h, checkpoint/checkpoint.h.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.h"
#include "base/file.h"
#include "base/units.h"
#include "checkpoint/checksum.h"

namespace optimus {

enum class StateField { master, first, second };
inline constexpr std::array kStateFields{StateField::master, StateField::first, StateField::second};
std::string_view text(StateField field);  // "master"

struct CheckpointFile {
  std::string name;  // in the checkpoint's folder
  Bytes bytes;
  Checksum sum;
  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointTensor {
  std::string name;
  Shape shape;
  bool operator==(const CheckpointTensor&) const = default;
};

// One box of one field of one tensor. It is stored in its file under the name stored_name().
struct CheckpointPiece {
  StateField field = StateField::master;
  int tensor = 0;  // index into Manifest::tensors
  Box box;
  int file = 0;  // index into Manifest::files
  bool operator==(const CheckpointPiece&) const = default;
};

struct Manifest {
  std::int64_t step = 0;
  std::vector<CheckpointFile> files;
  std::vector<CheckpointTensor> tensors;
  std::vector<CheckpointPiece> pieces;  // sorted by field, tensor and box

  // The pieces of one tensor. Returns an empty span if the field is not stored.
  std::span<const CheckpointPiece> pieces_of(StateField field, int tensor) const;
  bool has_field(StateField field) const;
  Bytes bytes() const;  // total size of all files
  bool operator==(const Manifest&) const = default;
};

inline constexpr int kManifestVersion = 1;
inline constexpr std::string_view kManifestFile = "manifest.json";

// "master/layers.0.attention.q.weight[0:128, 0:768]"
std::string stored_name(StateField field, std::string_view tensor, const Box& box);

// Sorts the pieces, then validates the manifest. Throws UserError with `source` unless file names are unique
// and have no path, sizes fit into 63 bits, boxes are inside their tensors, the pieces of each stored field
// cover every tensor exactly once, and master weights are stored.
void make_valid(Manifest& manifest, const std::string& source);

std::string manifest_text(const Manifest& manifest);  // content of the file; the manifest must be valid
// Throw UserError if the text is not a manifest, has an unsupported version, or is invalid.
Manifest parse_manifest(std::string_view text, const std::string& source);
Manifest read_manifest(const Path& folder);

// The shard list of a rank is a manifest that contains only the files and pieces of that rank, so its pieces
// do not cover the tensors. It is stored as rank-00000.json in the checkpoint's folder until the checkpoint
// is committed.
std::string shard_list_text(const Manifest& list);
Manifest parse_shard_list(std::string_view text, const std::string& source);  // throws UserError
// Combines the lists of all ranks into one manifest, which is not validated yet. Throws UserError if two
// lists have different steps or different shapes for a tensor.
Manifest merge(std::span<const Manifest> lists, const std::string& source);

}  // namespace optimus
