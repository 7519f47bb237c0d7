// See parameters.h.
#include "engine/parameters.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "base/error.h"
#include "base/random.h"

namespace optimus {
namespace {

// Tensors that are adjacent in memory, and the name of the fused tensor.
struct Fusion {
  const char* joint;
  std::vector<const char*> single;
};
const std::vector<Fusion>& fusions() {
  static const std::vector<Fusion> list = {
      {"attention.qkv", {"attention.q", "attention.k", "attention.v"}},
      {"mlp.gate_up", {"mlp.gate", "mlp.up"}},
  };
  return list;
}

// "layers.3.mlp.up.weight" -> "mlp.up.weight"
std::string_view name_in_block(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  if (!name.starts_with(kLayers)) return name;
  return name.substr(name.find('.', kLayers.size()) + 1);
}

std::vector<std::int64_t> sizes_of(const Box& box) {
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < box.num_dims; ++d) sizes.push_back(box[d].size());
  return sizes;
}

}  // namespace

const WeightView& BlockViews::operator[](std::string_view name) const {
  for (const auto& [view_name, view] : views_)
    if (view_name == name) return view;
  return undefined_view_;
}

Parameters::Parameters(const Plan& plan, const ModelSpec& model, int rank, at::Device device,
                       StorageMode storage_mode)
    : tensors_(logical_tensors(model)),
      types_(types_of(plan.precision)),
      device_(device),
      storage_mode_(storage_mode),
      shapes_((storage_mode == StorageMode::copies ? copied_shapes : block_shapes)(plan, model, rank)),
      blocks_(shapes_.size()) {
  if (plan.copy_distance > 0 &&
      (storage_mode == StorageMode::training || storage_mode == StorageMode::nothing))
    copies_ = std::make_unique<Parameters>(plan, model, rank, device, StorageMode::copies);
  for (std::size_t b = 0; b < shapes_.size(); ++b) {
    const BlockShape& shape = shapes_[b];
    update_ranges_.push_back(update_ranges(shape)), counted_ranges_.push_back(counted_ranges(shape));
    for (std::size_t i = 0; i < shape.tensors.size(); ++i)
      tensor_locations_[shape.tensors[i].name] = {static_cast<int>(b), i};
    if (storage_mode == StorageMode::training) allocate_state(static_cast<int>(b));
    if (storage_mode == StorageMode::weights && !shape.tensors.empty())
      blocks_[b].weights = blocks_[b].masters =
          zeros(static_cast<int>(b), StateKind::weights, types_.element);
  }
  if (storage_mode == StorageMode::training) complete();
}

at::Tensor Parameters::zeros(int block, StateKind kind, at::ScalarType type) const {
  return at::zeros({shape(block).elements(kind)}, at::TensorOptions(type).device(device_));
}

void Parameters::allocate_state(int number) {
  if (shape(number).tensors.empty()) return;
  if (copies_ != nullptr) copies_->allocate_copy(number);
  BlockState& state = block(number);
  if (types_.element == types_.wide)
    state.weights = state.masters = zeros(number, StateKind::weights, types_.element);
  else
    state.masters = zeros(number, StateKind::optimizer, types_.wide);
  state.first_moment = zeros(number, StateKind::optimizer, types_.wide);
  state.second_moment = zeros(number, StateKind::optimizer, types_.wide);
}

// If the masters are the weights, this device stores them completely unless weights are sharded too. A copy
// of such masters is needed only in that case.
void Parameters::allocate_copy(int number) {
  if (shape(number).tensors.empty()) return;
  BlockState& state = block(number);
  if (types_.element != types_.wide || shape(number).is_sharded(StateKind::weights))
    state.masters = zeros(number, StateKind::optimizer, types_.wide);
  state.first_moment = zeros(number, StateKind::optimizer, types_.wide);
  state.second_moment = zeros(number, StateKind::optimizer, types_.wide);
}

void Parameters::adopt_state(int number, const Parameters& from) {
  BlockState& state = block(number);
  const BlockState& block_state = from.block(number);
  state.masters = block_state.masters, state.first_moment = block_state.first_moment,
  state.second_moment = block_state.second_moment;
  if (types_.element == types_.wide && storage_mode_ != StorageMode::copies) state.weights = state.masters;
  if (copies_ != nullptr && from.copies() != nullptr) copies_->adopt_state(number, *from.copies());
}

void Parameters::release(int number) {
  block(number) = {};
  if (copies_ != nullptr) copies_->release(number);
}

void Parameters::release_all_but_state() {
  for (BlockState& state : blocks_) {
    state.gradients.reset();
    if (!state.weights.is_same(state.masters)) state.weights.reset();
  }
}

void Parameters::complete() {
  for (int b = 0; b < num_blocks(); ++b) {
    if (shape(b).tensors.empty()) continue;
    if (types_.element != types_.wide) block(b).weights = zeros(b, StateKind::weights, types_.element);
    block(b).gradients = zeros(b, StateKind::gradients, types_.wide);
  }
  round_masters();
}

const LocalTensor* Parameters::find(const std::string& name) const {
  const auto at = tensor_locations_.find(name);
  return at == tensor_locations_.end() ? nullptr : &shape(at->second.first).tensors[at->second.second];
}

bool Parameters::is_sharded(const LocalTensor& local_tensor, at::Tensor BlockState::*member) const {
  const int number = tensor_locations_.at(local_tensor.name).first;
  const BlockState& state = block(number);
  if (member == &BlockState::weights) return shape(number).is_sharded(StateKind::weights);
  if (member == &BlockState::gradients) return shape(number).is_sharded(StateKind::gradients);
  if (member == &BlockState::masters && state.masters.is_same(state.weights))
    return shape(number).is_sharded(StateKind::weights);
  return shape(number).is_sharded(StateKind::optimizer);
}

Box Parameters::box(const std::string& name, at::Tensor BlockState::*member) const {
  const LocalTensor* local_tensor = find(name);
  ensure(local_tensor != nullptr, "this device has no part of tensor {}", name);
  Box box = local_tensor->box;
  if (is_sharded(*local_tensor, member)) {
    const Span rows = shape(tensor_locations_.at(name).first).own_rows(*local_tensor);
    box[0] = {local_tensor->box[0].begin + rows.begin, local_tensor->box[0].begin + rows.end};
  }
  return box;
}

const Parameters* Parameters::holder(const std::string& name, at::Tensor BlockState::*member,
                                     const Box& target_box) const {
  const auto contains_target = [&](const Parameters& candidate) {
    return candidate.view(name, member).defined() && candidate.box(name, member).contains(target_box);
  };
  if (contains_target(*this)) return this;
  return copies_ != nullptr && contains_target(*copies_) ? copies_.get() : nullptr;
}

at::Tensor Parameters::view(const std::string& name, at::Tensor BlockState::*member) const {
  const LocalTensor* local_tensor = find(name);
  if (local_tensor == nullptr) return {};
  const at::Tensor& flat = block(tensor_locations_.at(name).first).*member;
  if (!flat.defined()) return {};
  const Box own_box = box(name, member);
  const std::int64_t offset =
      is_sharded(*local_tensor, member) ? local_tensor->shard_offset : local_tensor->offset;
  return flat.narrow(0, offset, own_box.num_elements()).view(sizes_of(own_box));
}

BlockViews Parameters::views(int block, const at::Tensor& weights, const at::Tensor& gradients) const {
  BlockViews result;
  const auto in = [](const at::Tensor& flat, std::int64_t offset, const std::vector<std::int64_t>& sizes) {
    std::int64_t count = 1;
    for (const std::int64_t size : sizes) count *= size;
    return flat.defined() ? flat.narrow(0, offset, count).view(sizes) : at::Tensor();
  };
  const auto add = [&](std::string name, std::int64_t offset, const std::vector<std::int64_t>& sizes) {
    result.add(std::move(name), {in(weights, offset, sizes), in(gradients, offset, sizes)});
  };
  const std::vector<LocalTensor>& tensors = shape(block).tensors;
  for (const LocalTensor& local_tensor : tensors)
    add(std::string(name_in_block(local_tensor.name)), local_tensor.offset, sizes_of(local_tensor.box));
  for (const Fusion& fusion : fusions())
    for (const char* suffix : {".weight", ".bias"}) {
      const LocalTensor* first = nullptr;
      std::int64_t rows = 0;
      for (const char* single : fusion.single)
        for (const LocalTensor& local_tensor : tensors)
          if (name_in_block(local_tensor.name) == std::string(single) + suffix) {
            if (first == nullptr) first = &local_tensor;
            ensure(local_tensor.offset == first->offset + rows * first->row,
                   "tensor {} does not directly follow {} in memory", local_tensor.name, first->name);
            rows += local_tensor.rows;
          }
      if (first == nullptr) continue;
      std::vector<std::int64_t> sizes = sizes_of(first->box);
      sizes[0] = rows;
      add(std::string(fusion.joint) + suffix, first->offset, sizes);
    }
  return result;
}

namespace {

void fill_initial_values(const LogicalTensor& tensor, const RandomKey& key, const Box& box,
                         std::vector<double>& values) {
  values.assign(static_cast<std::size_t>(box.num_elements()), tensor.init.kind == InitKind::ones ? 1.0 : 0.0);
  if (tensor.init.kind != InitKind::normal || values.empty()) return;
  const RandomKey tensor_key = key.derive(tensor.name);
  const std::int64_t rows = box.num_dims > 0 ? box.dims[0].size() : 1, row = box.num_elements() / rows;
  at::parallel_for(0, rows, std::max<std::int64_t>(1, (1 << 16) / row),
                   [&](std::int64_t from, std::int64_t to) {
                     Box part = box;
                     part.dims[0] = {box.dims[0].begin + from, box.dims[0].begin + to};
                     const std::span<double> piece = std::span(values).subspan(
                         static_cast<std::size_t>(from * row), static_cast<std::size_t>((to - from) * row));
                     fill_normal(tensor_key, tensor.shape, part, piece);
                     for (double& value : piece) value *= tensor.init.deviation;
                   });
}

}  // namespace

void Parameters::initialize(std::int64_t seed) {
  if (copies_ != nullptr) copies_->initialize(seed);
  const RandomKey key = RandomKey(static_cast<std::uint64_t>(seed)).derive("init");
  std::vector<double> values;
  for (const LogicalTensor& tensor : tensors_) {
    if (find(tensor.name) == nullptr || tensor.init.kind == InitKind::custom) continue;
    std::optional<Box> filled;
    for (at::Tensor BlockState::*const member : {&BlockState::masters, &BlockState::weights}) {
      at::Tensor target = view(tensor.name, member);
      if (!target.defined()) continue;  // copies have no weights
      const Box own_box = box(tensor.name, member);
      if (filled != own_box) fill_initial_values(tensor, key, own_box, values);
      filled = own_box;
      target.copy_(at::from_blob(values.data(), target.sizes(), at::kDouble));
      const BlockState& state = block(tensor_locations_.at(tensor.name).first);
      if (state.masters.is_same(state.weights)) break;
    }
  }
}

void Parameters::set(const std::string& name, std::span<const double> values) {
  const LocalTensor* local_tensor = find(name);
  if (local_tensor == nullptr) return;
  const LogicalTensor& tensor = tensors_[static_cast<std::size_t>(local_tensor->tensor)];
  ensure(std::ssize(values) == tensor.shape.num_elements(), "tensor {}: expected {} values, got {}", name,
         tensor.shape.num_elements(), values.size());
  // from_blob only reads.
  set_from(name, at::from_blob(const_cast<double*>(values.data()), sizes_of(Box(tensor.shape)), at::kDouble));
}
void Parameters::set(const std::string& name, std::span<const float> values) {
  const LocalTensor* local_tensor = find(name);
  if (local_tensor == nullptr) return;
  const LogicalTensor& tensor = tensors_[static_cast<std::size_t>(local_tensor->tensor)];
  ensure(std::ssize(values) == tensor.shape.num_elements(), "tensor {}: expected {} values, got {}", name,
         tensor.shape.num_elements(), values.size());
  set_from(name, at::from_blob(const_cast<float*>(values.data()), sizes_of(Box(tensor.shape)), at::kFloat));
}

void Parameters::set_from(const std::string& name, const at::Tensor& whole) {
  const auto part = [&](at::Tensor BlockState::*member) {
    const Box own_box = box(name, member);
    at::Tensor result = whole;
    for (int d = 0; d < own_box.num_dims; ++d) result = result.narrow(d, own_box[d].begin, own_box[d].size());
    return result;
  };
  if (at::Tensor master_values = master(name); master_values.defined())
    master_values.copy_(part(&BlockState::masters));
  if (copies_ != nullptr && copies_->find(name) != nullptr) copies_->set_from(name, whole);
  const BlockState& state = block(tensor_locations_.at(name).first);
  if (!state.weights.defined()) return;
  // Rounds from the master's type, like an update does.
  if (!state.masters.is_same(state.weights))
    weight(name).copy_(part(&BlockState::weights).to(state.masters.scalar_type()));
}

std::vector<double> Parameters::get(const std::string& name, at::Tensor BlockState::*member) const {
  const at::Tensor source = view(name, member);
  ensure(source.defined(), "this device has no part of tensor {}", name);
  std::vector<double> values(static_cast<std::size_t>(source.numel()));
  at::from_blob(values.data(), source.sizes(), at::kDouble).copy_(source);
  return values;
}

void Parameters::round_masters() {
  for (std::size_t b = 0; b < blocks_.size(); ++b) {
    BlockState& state = blocks_[b];
    if (!state.weights.defined() || state.weights.is_same(state.masters)) continue;
    const bool is_whole = !shapes_[b].is_sharded(StateKind::weights);
    for (const StateRange& run : update_ranges_[b])
      state.weights.narrow(0, is_whole ? run.whole : run.shard, run.length)
          .copy_(state.masters.narrow(0, run.shard, run.length));
  }
}

void Parameters::zero_gradients() {
  for (BlockState& state : blocks_)
    if (state.gradients.defined()) state.gradients.zero_();
}

Bytes Parameters::bytes() const {
  std::int64_t total = 0;
  for (const BlockState& state : blocks_) {
    for (const at::Tensor* tensor :
         {&state.weights, &state.gradients, &state.masters, &state.first_moment, &state.second_moment})
      if (tensor->defined()) total += static_cast<std::int64_t>(tensor->nbytes());
    if (state.weights.defined() && state.masters.is_same(state.weights))
      total -= static_cast<std::int64_t>(state.masters.nbytes());
  }
  return copies_ == nullptr ? Bytes(total) : Bytes(total) + copies_->bytes();
}

}  // namespace optimus
