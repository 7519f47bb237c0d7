// See checkpoint.h.
#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "base/text.h"
#include "checkpoint/box_copy.h"
#include "checkpoint/safetensors.h"

namespace optimus {
namespace {

constexpr Bytes kMaxSmallFileBytes{std::int64_t{1} << 30};

void check_size(const Path& path, Bytes expected) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error == std::errc::no_such_file_or_directory)
    throw RuntimeFailure("{} is missing, although the checkpoint's manifest lists it", path.string());
  if (error) throw RuntimeFailure("cannot read {}: {}", path.string(), error.message());
  if (static_cast<std::int64_t>(size) != expected.value)
    throw RuntimeFailure("{} is damaged: expected {} bytes (as in the checkpoint's manifest), got {}",
                         path.string(), expected.value, size);
}

void check_checksum(const Path& path, Checksum actual, Checksum expected) {
  if (actual == expected) return;
  throw RuntimeFailure("{} is damaged: expected checksum {} (as in the checkpoint's manifest), got {}",
                       path.string(), text(expected), text(actual));
}

}  // namespace

struct Checkpoint::State {
  // The first thread that needs a shard opens it. Other threads that need the same shard wait.
  struct Shard {
    std::mutex mutex;
    std::unique_ptr<SafetensorsFile> file;
  };

  Path folder;
  Manifest manifest;
  ChecksumCheck check = ChecksumCheck::when_read;
  std::unordered_map<std::string_view, int> tensors, files;  // the names are owned by the manifest
  std::unique_ptr<Shard[]> shards;                           // [file]

  Path path_of(const CheckpointFile& file) const { return folder / file.name; }

  // Maps the file after checking its size and, if requested, its checksum.
  MappedFile map(const CheckpointFile& file, ChecksumCheck checksum_check) const {
    check_size(path_of(file), file.bytes);
    MappedFile mapped = value_or_throw(MappedFile::open(path_of(file)));
    if (checksum_check == ChecksumCheck::when_read)
      check_checksum(path_of(file), checksum(mapped.bytes()), file.sum);
    return mapped;
  }

  const SafetensorsFile& shard(int index) const {
    const CheckpointFile& file = manifest.files[static_cast<std::size_t>(index)];
    Shard& shard = shards[static_cast<std::size_t>(index)];
    const std::lock_guard lock(shard.mutex);
    if (!shard.file)
      shard.file = std::make_unique<SafetensorsFile>(SafetensorsFile::open(path_of(file), map(file, check)));
    return *shard.file;
  }

  const StoredTensor& stored_tensor(const CheckpointPiece& piece) const {
    const SafetensorsFile& file = shard(piece.file);
    const std::string name =
        stored_name(piece.field, manifest.tensors[static_cast<std::size_t>(piece.tensor)].name, piece.box);
    const StoredTensor* const tensor = file.find(name);
    const auto description = [&] {
      return fmt::format("{}: tensor {}", file.path().string(), in_quotes(name, 200));
    };
    if (tensor == nullptr)
      throw RuntimeFailure("{} is missing, although the checkpoint's manifest lists it", description());
    const Shape shape = piece.box.shape();
    if (!std::equal(tensor->shape.begin(), tensor->shape.end(), shape.dims.begin(),
                    shape.dims.begin() + shape.num_dims))
      throw RuntimeFailure("{} has shape {}, but its box has shape {}", description(),
                           shape_text(tensor->shape), text(shape));
    if (!is_float(tensor->type))
      throw RuntimeFailure("{}: expected a float type, got {}", description(), text(tensor->type));
    return *tensor;
  }

  int index_of(StateField field, std::string_view tensor) const {
    const auto it = tensors.find(tensor);
    if (it == tensors.end())
      throw UserError("{}: the checkpoint has no tensor {}", folder.string(), in_quotes(tensor));
    if (!manifest.has_field(field))
      throw UserError("{}: the checkpoint does not contain {}", folder.string(),
                      field == StateField::master ? "master weights" : "optimizer moments");
    return it->second;
  }

  template <typename Real>
  void read(StateField field, std::string_view name, const Box& box, std::span<Real> out) const {
    const int index = index_of(field, name);
    const Shape& shape = manifest.tensors[static_cast<std::size_t>(index)].shape;
    if (box.num_dims != shape.num_dims || !Box(shape).contains(box))
      throw UserError("{}: tensor {} has shape {}, which does not contain box {}", folder.string(),
                      in_quotes(name), text(shape), text(box));
    ensure(std::ssize(out) == box.num_elements(), "{} output values do not match box {}", out.size(),
           text(box));
    for (const CheckpointPiece& piece : manifest.pieces_of(field, index)) {
      const auto common = intersect(piece.box, box);
      if (!common) continue;
      const StoredTensor& source = stored_tensor(piece);
      copy_box({source.type, source.bytes, piece.box}, *common, box, out);
    }
  }
};

Checkpoint::Checkpoint(std::unique_ptr<State> state) : state_(std::move(state)) {}
Checkpoint::Checkpoint(Checkpoint&&) noexcept = default;
Checkpoint::~Checkpoint() = default;

Checkpoint Checkpoint::open(const Path& folder, ChecksumCheck check) {
  std::error_code error;
  if (!std::filesystem::exists(folder / kManifestFile, error) && !error)
    throw UserError("{} is not a checkpoint: it has no {}", folder.string(), kManifestFile);
  auto state = std::make_unique<State>();
  state->folder = folder;
  state->check = check;
  state->manifest = read_manifest(folder);
  const Manifest& manifest = state->manifest;
  for (int t = 0; t < std::ssize(manifest.tensors); ++t)
    state->tensors.emplace(manifest.tensors[static_cast<std::size_t>(t)].name, t);
  for (int f = 0; f < std::ssize(manifest.files); ++f) {
    const CheckpointFile& file = manifest.files[static_cast<std::size_t>(f)];
    check_size(state->path_of(file), file.bytes);
    state->files.emplace(file.name, f);
  }
  state->shards = std::make_unique<State::Shard[]>(manifest.files.size());
  return Checkpoint(std::move(state));
}

const Path& Checkpoint::folder() const { return state_->folder; }
const Manifest& Checkpoint::manifest() const { return state_->manifest; }

const CheckpointTensor* Checkpoint::find(std::string_view tensor) const {
  const auto it = state_->tensors.find(tensor);
  return it == state_->tensors.end() ? nullptr : &manifest().tensors[static_cast<std::size_t>(it->second)];
}

ElementType Checkpoint::type_of(StateField field, std::string_view tensor) const {
  return state_->stored_tensor(manifest().pieces_of(field, state_->index_of(field, tensor)).front()).type;
}

void Checkpoint::read(StateField field, std::string_view tensor, const Box& box, std::span<float> out) const {
  state_->read(field, tensor, box, out);
}
void Checkpoint::read(StateField field, std::string_view tensor, const Box& box,
                      std::span<double> out) const {
  state_->read(field, tensor, box, out);
}

bool Checkpoint::has_file(std::string_view name) const { return state_->files.contains(name); }

std::string Checkpoint::small_file(std::string_view name) const {
  const auto it = state_->files.find(name);
  if (it == state_->files.end())
    throw UserError("{}: the checkpoint has no file {}", folder().string(), in_quotes(name));
  const CheckpointFile& file = manifest().files[static_cast<std::size_t>(it->second)];
  std::string content = value_or_throw(read_file(state_->path_of(file), kMaxSmallFileBytes));
  if (state_->check == ChecksumCheck::when_read)
    check_checksum(state_->path_of(file), checksum(content), file.sum);
  return content;
}

void Checkpoint::verify(EventSink& events) const {
  const Bytes total = manifest().bytes();
  Bytes verified;
  for (const CheckpointFile& file : manifest().files) {
    (void)state_->map(file, ChecksumCheck::when_read);
    verified += file.bytes;
    events.report(
        Progress{"verifying " + folder().filename().string(), verified.value, total.value, "bytes"});
  }
  // Checks that the shards contain the tensors that the manifest lists. Checksums were verified above.
  const Checkpoint unchecked = open(folder(), ChecksumCheck::never);
  for (const CheckpointPiece& piece : unchecked.manifest().pieces)
    (void)unchecked.state_->stored_tensor(piece);
}

void ensure_same_model(const Checkpoint& checkpoint, const ModelSpec& model) {
  const std::vector<LogicalTensor> tensors = logical_tensors(model);
  const std::size_t num_stored = checkpoint.manifest().tensors.size();
  if (num_stored != tensors.size())
    throw UserError("{} contains {} tensors, but {} has {}; the checkpoint belongs to a different model",
                    checkpoint.folder().string(), num_stored, model.name, tensors.size());
  for (const LogicalTensor& tensor : tensors)
    if (const CheckpointTensor* stored = checkpoint.find(tensor.name);
        stored == nullptr || stored->shape != tensor.shape)
      throw UserError(
          "{}: tensor {} {}, but in {} it has shape {}; the checkpoint belongs to a different model",
          checkpoint.folder().string(), tensor.name,
          stored == nullptr ? "is missing" : "has shape " + text(stored->shape), model.name,
          text(tensor.shape));
}

}  // namespace optimus
