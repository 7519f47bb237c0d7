// Implements saver.h.
#include "run/saver.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <chrono>

#include "base/error.h"
#include "plan/layouts.h"
#include "run/neighbor_copies.h"

namespace optimus {
namespace {

using SteadyClock = std::chrono::steady_clock;
Seconds since(SteadyClock::time_point begin_time) {
  return Seconds(std::chrono::duration<double>(SteadyClock::now() - begin_time).count());
}

at::Tensor BlockState::*member_of(StateField field) {
  switch (field) {
    case StateField::master:
      return &BlockState::masters;
    case StateField::first:
      return &BlockState::first_moment;
    case StateField::second:
      return &BlockState::second_moment;
  }
  return nullptr;
}

// Returns the boxes that a rank saves. No box is saved by two ranks.
std::vector<TensorBox> own_boxes(const Layout& layout, int rank) {
  if (rank >= num_ranks(layout)) return {};  // a stage of modules without parameters
  return boxes_to_save(layout).at(static_cast<std::size_t>(rank));
}

// Returns the values of one box of a tensor that this rank owns.
at::Tensor values_of(const Parameters& parameters, const TensorBox& tensor_box, StateField field) {
  const std::string& name = parameters.tensors()[static_cast<std::size_t>(tensor_box.tensor)].name;
  const Parameters* const holder = parameters.holder(name, member_of(field), tensor_box.box);
  ensure(holder != nullptr, "{} of {} is not on this rank", text(tensor_box.box), name);
  at::Tensor values = holder->view(name, member_of(field));
  const Box own_box = holder->box(name, member_of(field));
  for (int d = 0; d < own_box.num_dims; ++d)
    values = values.narrow(d, tensor_box.box[d].begin - own_box[d].begin, tensor_box.box[d].size());
  return values;
}

}  // namespace

Saver::Saver(Target target, const Plan& plan, const ModelSpec& model, const Parameters& parameters,
             Agreement ranks, int rank)
    : target_(std::move(target)),
      layout_(layout_with_copies(plan, model, StateKind::optimizer)),
      parameters_(parameters),
      rank_(rank),
      ranks_(ranks) {}

Saver::~Saver() {
  if (in_progress_ && in_progress_->write_result.valid()) in_progress_->write_result.wait();
}

// Allocates the piece's copy without filling it.
Saver::Piece Saver::piece_of(const TensorBox& tensor_box, StateField field) const {
  const LogicalTensor& tensor = parameters_.tensors()[static_cast<std::size_t>(tensor_box.tensor)];
  Piece piece;
  piece.source = values_of(parameters_, tensor_box, field);
  piece.copy = at::empty(piece.source.sizes(), piece.source.options().device(at::kCPU));
  piece.stored = {field,
                  tensor.name,
                  tensor.shape,
                  tensor_box.box,
                  piece.source.scalar_type() == at::kDouble ? ElementType::f64 : ElementType::f32,
                  {static_cast<const std::byte*>(piece.copy.const_data_ptr()), piece.copy.nbytes()}};
  return piece;
}

void Saver::make_pieces() {
  const std::vector<TensorBox> boxes = own_boxes(layout_, rank_);
  for (const StateField field : kStateFields)
    for (const TensorBox& tensor_box : boxes) {
      pieces_.push_back(piece_of(tensor_box, field));
      stored_.push_back(pieces_.back().stored);
    }
}

void Saver::end_writing() {
  if (in_progress_ && in_progress_->write_result.valid()) in_progress_->write_result.wait();
  in_progress_.reset();
  pieces_.clear(), stored_.clear();  // frees the copies
}

Outcome<Bytes> Saver::write_part(const std::vector<TensorBox>& boxes, const Path& folder, Rank writer) const {
  std::vector<Piece> pieces;
  std::vector<StatePiece> stored;
  for (const StateField field : kStateFields)
    for (const TensorBox& tensor_box : boxes) {
      pieces.push_back(piece_of(tensor_box, field));
      pieces.back().copy.copy_(pieces.back().source);
      stored.push_back(pieces.back().stored);
    }
  return write_shards(target_.files, folder, writer, stored);
}

// Each rank stores its own part and copies of its neighbors' parts. Older steps are removed once all ranks
// have stored this step.
void Saver::save_to_hosts(const TrainingState& state) {
  const SteadyClock::time_point begin_time = SteadyClock::now();
  const HostMemory& memory = *target_.hosts;
  const int writer = ranks_.rank_index();
  const Path folder = memory.step_folder(writer, state.step);
  const bool is_first = memory.is_first_of_host(writer);
  Outcome<void> outcome;
  try {
    make_memory_folder(memory);  // a rank that left the run on this host may have removed it
    outcome = target_.files.create_folders(folder);
  } catch (const ReportedError& error) {
    outcome = failure("{}", error.what());
  }
  Outcome<Bytes> bytes = Bytes(0);
  if (outcome) bytes = write_part(own_boxes(layout_, rank_), folder, Rank{writer});
  if (!bytes) outcome = tl::unexpected(bytes.error());
  if (outcome && is_first) {
    std::vector<SmallFile> small = target_.small_files;
    small.push_back({std::string(kTrainingStateFile), training_state_text(state)});
    outcome = write_step_files(target_.files, folder, small, memory.num_writers());
  }
  if (!ranks_.is_alone()) {
    const Outcome<void> copied = exchange_copies(*ranks_.comm(), {memory, writer, folder, bytes.has_value()},
                                                 target_.files, ranks_.timeout());
    if (outcome) outcome = copied;
  }
  ended_result_.emplace(SaveResult{{.step = state.step}, SavedCheckpoint{folder, bytes.value_or(Bytes(0))}});
  if (ranks_.any(!outcome, "copies in memory"))
    ended_result_->saved =
        failure("{}", outcome ? "another rank could not store its part" : outcome.error().why);
  else if (is_first)
    remove_steps_before(folder);
  ended_result_->metrics.pause = since(begin_time);
}

void Saver::begin(const TrainingState& state) {
  if (target_.hosts) return save_to_hosts(state);
  if (in_progress_) ended_result_ = finish();
  const SteadyClock::time_point begin_time = SteadyClock::now();
  if (pieces_.empty()) make_pieces();
  for (Piece& piece : pieces_) piece.copy.copy_(piece.source);
  SaveInProgress& save = in_progress_.emplace();
  save.state = state, save.pause = since(begin_time);
  std::string folder;
  if (ranks_.rank_index() == 0) {
    const Outcome<Path> checkpoint_folder = begin_checkpoint(target_.files, target_.run, state.step);
    folder = checkpoint_folder ? checkpoint_folder->string() : "";
    if (!checkpoint_folder) save.why = checkpoint_folder.error().why;
  }
  save.folder = ranks_.value_of_first_rank(folder, "the checkpoint's folder");
  if (save.folder.empty()) return;
  save.write_result = std::async(std::launch::async, [this, state, to = save.folder] {
    const SteadyClock::time_point write_begin_time = SteadyClock::now();
    SaveInProgress::WriteResult write_result{
        write_shards(target_.files, to, Rank{ranks_.rank_index()}, stored_), {}, {}};
    if (ranks_.is_alone() && write_result.bytes)
      write_result.assemble_checkpoint = assemble_checkpoint(state, to);
    write_result.seconds = since(write_begin_time);
    return write_result;
  });
}

// Called when every rank has written its shards or has failed to do so.
SaveResult Saver::finish() {
  SaveInProgress save = std::move(*in_progress_);
  in_progress_.reset();
  SaveResult result{{.step = save.state.step, .pause = save.pause}, failure("{}", save.why)};
  if (save.folder.empty()) return result;
  const SaveInProgress::WriteResult own = save.write_result.get();
  result.metrics.write = own.seconds;
  result.saved = commit(save, own);
  if (result.saved) result.metrics.bytes = result.saved->bytes;
  return result;
}

Outcome<SavedCheckpoint> Saver::commit(const SaveInProgress& save, const SaveInProgress::WriteResult& own) {
  if (ranks_.any(!own.bytes, "shards written")) {
    if (ranks_.rank_index() == 0) abandon_checkpoint(target_.files, save.folder);
    return own.bytes ? failure("another rank could not write its part")
                     : failure("{}", own.bytes.error().why);
  }
  const double bytes = ranks_.sum(static_cast<double>(own.bytes->value), "bytes written");
  std::string folder, why = "rank 0 could not assemble the checkpoint";
  if (ranks_.rank_index() == 0) {
    const Outcome<Path> checkpoint =
        own.assemble_checkpoint ? *own.assemble_checkpoint : assemble_checkpoint(save.state, save.folder);
    folder = checkpoint ? checkpoint->string() : "";
    if (!checkpoint) why = checkpoint.error().why;
  }
  folder = ranks_.value_of_first_rank(folder, "the checkpoint");
  if (folder.empty()) return failure("{}", why);
  return SavedCheckpoint{folder, Bytes(static_cast<std::int64_t>(bytes))};
}

// Assembles the checkpoint from all shards and removes old checkpoints. Called on one rank.
Outcome<Path> Saver::assemble_checkpoint(const TrainingState& state, const Path& folder) {
  CommitOptions options{.num_writers = ranks_.size(), .files = target_.small_files};
  options.files.push_back({std::string(kTrainingStateFile), training_state_text(state)});
  Outcome<Path> checkpoint = commit_checkpoint(target_.files, folder, options);
  if (!checkpoint) {
    abandon_checkpoint(target_.files, folder);
    return checkpoint;
  }
  Retention retention = target_.retention;
  // When this run was resumed, checkpoints of later steps were skipped as damaged.
  retention.newest = state.step;
  // Checkpoints that cannot be removed take up space but are harmless. The next save tries again.
  apply_retention(target_.files, target_.run, retention);
  return checkpoint;
}

std::optional<SaveResult> Saver::take_result(bool wait) {
  if (ended_result_ && !wait) return std::exchange(ended_result_, std::nullopt);
  if (in_progress_) {
    const bool is_open =
        in_progress_->write_result.valid() &&
        in_progress_->write_result.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
    if (wait || !ranks_.any(is_open, "a save in progress")) ended_result_ = finish();
  }
  return std::exchange(ended_result_, std::nullopt);
}

void restore(const Checkpoint& checkpoint, const ModelSpec& model, Restored selection,
             Parameters& parameters) {
  ensure_same_model(checkpoint, model);
  if (Parameters* const copies = parameters.copies()) restore(checkpoint, model, selection, *copies);
  for (const LogicalTensor& tensor : parameters.tensors()) {
    if (parameters.find(tensor.name) == nullptr) continue;  // belongs to another stage
    const auto read = [&](StateField field, at::Tensor BlockState::*member) {
      at::Tensor target = parameters.view(tensor.name, member);
      if (!target.defined()) return;  // redundant copies have only some of the fields
      const Box box = parameters.box(tensor.name, member);
      if (box.is_empty()) return;
      // Weights are rounded from masters in the same way as during an optimizer update.
      const at::ScalarType type = target.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
      at::Tensor values = at::empty(target.sizes(), at::TensorOptions(type));
      const auto count = static_cast<std::size_t>(values.numel());
      if (type == at::kDouble)
        checkpoint.read(field, tensor.name, box, std::span(values.data_ptr<double>(), count));
      else
        checkpoint.read(field, tensor.name, box, std::span(values.data_ptr<float>(), count));
      target.copy_(values);
    };
    read(StateField::master, &BlockState::masters);
    if (const at::Tensor weight = parameters.weight(tensor.name);
        weight.defined() && !weight.is_alias_of(parameters.master(tensor.name)))
      read(StateField::master, &BlockState::weights);
    if (selection == Restored::weights) continue;
    read(StateField::first, &BlockState::first_moment);
    read(StateField::second, &BlockState::second_moment);
  }
}

}  // namespace optimus
