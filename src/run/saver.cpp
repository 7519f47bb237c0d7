// See saver.h.
#include "run/saver.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <chrono>

#include "base/error.h"
#include "plan/layouts.h"

namespace optimus {
namespace {

using Clock = std::chrono::steady_clock;
Seconds since(Clock::time_point began) {
  return Seconds(std::chrono::duration<double>(Clock::now() - began).count());
}

at::Tensor BlockState::*member_of(StateField field) {
  switch (field) {
    case StateField::master:
      return &BlockState::masters;
    case StateField::first:
      return &BlockState::first;
    case StateField::second:
      return &BlockState::second;
  }
  return nullptr;
}

// What rank 0, the only one today, has in memory are whole boxes of its layout.
std::vector<HeldBox> own_boxes(const Layout& layout) { return boxes_to_store(layout).at(0); }

at::Tensor values_of(const Parameters& parameters, const HeldBox& held, StateField field) {
  const at::Tensor view =
      parameters.view(parameters.tensors()[static_cast<std::size_t>(held.tensor)].name, member_of(field));
  ensure(view.defined() && view.numel() == held.box.num_elements() && view.is_contiguous(),
         "a part of what is held of tensor {}", held.tensor);
  return view;
}

}  // namespace

Saver::Saver(Target target, const Plan& plan, const ModelSpec& model, const Parameters& parameters)
    : target_(std::move(target)),
      layout_(layout_of(plan, model, StateKind::optimizer)),
      parameters_(parameters) {}

Saver::~Saver() {
  if (under_way_.valid()) under_way_.wait();
}

void Saver::make_pieces() {
  const std::vector<HeldBox> boxes = own_boxes(layout_);
  for (const StateField field : kStateFields)
    for (const HeldBox& held : boxes) {
      const LogicalTensor& tensor = parameters_.tensors()[static_cast<std::size_t>(held.tensor)];
      Piece piece;
      piece.source = values_of(parameters_, held, field);
      piece.copy = at::empty(piece.source.sizes(), piece.source.options().device(at::kCPU));
      piece.stored = {field,
                      tensor.name,
                      tensor.shape,
                      held.box,
                      piece.source.scalar_type() == at::kDouble ? ElementType::f64 : ElementType::f32,
                      {static_cast<const std::byte*>(piece.copy.const_data_ptr()), piece.copy.nbytes()}};
      stored_.push_back(piece.stored);
      pieces_.push_back(std::move(piece));
    }
}

void Saver::begin(const TrainingState& state) {
  if (under_way_.valid()) ended_ = under_way_.get();
  const Clock::time_point began = Clock::now();
  if (pieces_.empty()) make_pieces();
  for (Piece& piece : pieces_) piece.copy.copy_(piece.source);
  const Seconds pause = since(began);
  under_way_ = std::async(std::launch::async, [this, state, pause] {
    const Clock::time_point start = Clock::now();
    SaveResult result{{.step = state.step, .pause = pause}, write(state)};
    result.metrics.write = since(start);
    if (result.saved) result.metrics.bytes = result.saved->bytes;
    return result;
  });
}

Outcome<SavedCheckpoint> Saver::write(const TrainingState& state) {
  std::vector<SmallFile> small_files = target_.small_files;
  small_files.push_back({std::string(kTrainingStateFile), training_state_text(state)});
  Outcome<SavedCheckpoint> saved =
      save_checkpoint(target_.files, target_.run, state.step, stored_, std::move(small_files));
  if (!saved) return saved;
  Retention retention = target_.retention;
  retention.newest = state.step;  // later ones are what this run has passed over as damaged
  // Those that cannot be removed take room and do no harm; the next save tries again.
  apply_retention(target_.files, target_.run, retention);
  return saved;
}

std::optional<SaveResult> Saver::take_ended(bool wait) {
  if (ended_ && !wait) return std::exchange(ended_, std::nullopt);
  if (under_way_.valid() &&
      (wait || under_way_.wait_for(std::chrono::seconds(0)) == std::future_status::ready))
    ended_ = under_way_.get();
  return std::exchange(ended_, std::nullopt);
}

void restore(const Checkpoint& checkpoint, const Plan& plan, const ModelSpec& model, Restored what,
             Parameters& parameters) {
  const std::size_t stored = checkpoint.manifest().tensors.size(), wanted = parameters.tensors().size();
  if (stored != wanted)
    throw UserError("{} holds {} tensors, {} has {}; it is of another model", checkpoint.folder().string(),
                    stored, model.name, wanted);
  for (const HeldBox& held : own_boxes(layout_of(plan, model, StateKind::optimizer))) {
    const LogicalTensor& tensor = parameters.tensors()[static_cast<std::size_t>(held.tensor)];
    if (const CheckpointTensor* found = checkpoint.find(tensor.name);
        found == nullptr || found->shape != tensor.shape)
      throw UserError("{}: {} is {}, {} has it as {}; the checkpoint is of another model",
                      checkpoint.folder().string(), tensor.name,
                      found == nullptr ? "not there" : text(found->shape), model.name, text(tensor.shape));
    for (const StateField field : kStateFields) {
      if (what == Restored::weights && field != StateField::master) continue;
      at::Tensor target = values_of(parameters, held, field);
      at::Tensor values = at::empty(target.sizes(), target.options().device(at::kCPU));
      const auto count = static_cast<std::size_t>(values.numel());
      if (values.scalar_type() == at::kDouble)
        checkpoint.read(field, tensor.name, held.box, std::span(values.data_ptr<double>(), count));
      else
        checkpoint.read(field, tensor.name, held.box, std::span(values.data_ptr<float>(), count));
      target.copy_(values);
    }
  }
  parameters.round_masters();
}

}  // namespace optimus
