// The manifest of a checkpoint: which files belong to it, and which box of which tensor lies where. It is written last, so
// a folder with a valid manifest is a checkpoint and any other folder is none. docs/checkpoints.md describes the file.
//
// What is stored are the fields of the optimizer's state: masters and Adam's two moments. Working weights are masters,
// rounded, and are not stored. Tensors are the canonical logical ones of model/tensors.h; boxes may be cut in any way, so
// whoever saved does not matter to whoever loads. Read next: checkpoint/save.h, checkpoint/checkpoint.h.
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

// One box of one field of one tensor. In its file it is the tensor stored_name().
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
  std::vector<CheckpointPiece> pieces;  // by field, tensor and box

  // Those of one tensor; empty when the field is not stored.
  std::span<const CheckpointPiece> pieces_of(StateField field, int tensor) const;
  bool has(StateField field) const;
  Bytes bytes() const;  // of all files
  bool operator==(const Manifest&) const = default;
};

inline constexpr int kManifestVersion = 1;
inline constexpr std::string_view kManifestFile = "manifest.json";

// "master/layers.0.attention.q.weight[0:128, 0:768]"
std::string stored_name(StateField field, std::string_view tensor, const Box& box);

// Sorts the pieces, then throws UserError that begins with `source` unless: names are different and plain, sizes fit 63
// bits, boxes lie inside their tensors, and each field that is there covers every tensor exactly once; masters must be there.
void make_valid(Manifest& manifest, const std::string& source);

std::string manifest_text(const Manifest& manifest);  // the file's content; the manifest must be valid
// Throw UserError for what is no manifest, one of another version, and one that is not valid.
Manifest parse_manifest(std::string_view text, const std::string& source);
Manifest read_manifest(const Path& folder);

// What one writing rank has stored is a manifest too, of its own files and pieces, which alone cover nothing. It lies beside
// the rank's shards as rank-00000.json until the checkpoint is committed.
std::string shard_list_text(const Manifest& list);
Manifest parse_shard_list(std::string_view text, const std::string& source);  // throws UserError
// The lists of all ranks as one manifest, not yet checked. Throws UserError when two disagree about the step or a shape.
Manifest merge(std::span<const Manifest> lists, const std::string& source);

}  // namespace optimus
