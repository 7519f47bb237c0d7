// See parameters.h.
#include "engine/parameters.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "base/error.h"
#include "base/random.h"

namespace optimus {
namespace {

// Tensors that one product fills or reads: q | k | v and gate | up, weights and biases. The joint name takes the place of the
// single ones: "attention.qkv.weight", "mlp.gate_up.weight".
struct Fusion {
  const char* joint;
  std::vector<const char*> single;
};
const std::vector<Fusion>& fusions() {
  static const std::vector<Fusion> all = {
      {"attention.qkv", {"attention.q", "attention.k", "attention.v"}},
      {"mlp.gate_up", {"mlp.gate", "mlp.up"}},
  };
  return all;
}

StorageType storage_type(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return StorageType::fp64;
    case at::kBFloat16:
      return StorageType::bf16;
    case at::kHalf:
      return StorageType::fp16;
    default:
      return StorageType::fp32;
  }
}

std::string layer_prefix(int block) { return fmt::format("layers.{}.", block - 1); }

StorageSpec storage_spec(const std::vector<LogicalTensor>& tensors, const ModelSpec& model,
                         at::ScalarType element) {
  StorageSpec spec;
  spec.types.assign(tensors.size(), storage_type(element));
  std::map<std::string, int> index;
  for (std::size_t t = 0; t < tensors.size(); ++t) index[tensors[t].name] = static_cast<int>(t);
  for (int block = 1; block <= model.layers; ++block)
    for (const Fusion& fusion : fusions())
      for (const char* suffix : {".weight", ".bias"}) {
        std::vector<int> members;
        for (const char* name : fusion.single)
          if (const auto at = index.find(layer_prefix(block) + name + suffix); at != index.end())
            members.push_back(at->second);
        if (members.size() > 1) spec.fusions.push_back(std::move(members));
      }
  return spec;
}

}  // namespace

Parameters::Parameters(const Plan& plan, const ModelSpec& model, int rank, at::Device device, Keeping keeping)
    : tensors_(logical_tensors(model)), device_(device) {
  const ElementTypes types = types_of(plan.precision);
  const Layout layout = layout_of(plan, model, StateKind::weights);
  const RankIndex index(layout);
  const Storage storage =
      build_storage(layout, index, Rank{rank}, storage_spec(tensors_, model, types.element));
  blocks_.resize(static_cast<std::size_t>(optimus::num_blocks(model)));
  segments_.resize(blocks_.size());
  std::vector<int> block_of(storage.buffers.size(), -1);
  for (const StorageEntry& entry : storage.entries)
    block_of[static_cast<std::size_t>(entry.buffer)] = tensors_[static_cast<std::size_t>(entry.tensor)].block;
  for (std::size_t b = 0; b < storage.buffers.size(); ++b) {
    BlockState& state = block(block_of[b]);
    const auto zeros = [&](at::ScalarType type) {
      return at::zeros({storage.buffers[b].num_elements}, at::TensorOptions(type).device(device));
    };
    state.weights = state.masters = zeros(types.element);
    if (keeping == Keeping::weights) continue;
    state.gradients = zeros(types.wide);
    if (types.element != types.wide) state.masters = zeros(types.wide);
    state.first = zeros(types.wide), state.second = zeros(types.wide);
  }
  add_views(storage);
  add_segments();
}

void Parameters::add_views(const Storage& storage) {
  for (const StorageEntry& entry : storage.entries) {
    const LogicalTensor& tensor = tensors_[static_cast<std::size_t>(entry.tensor)];
    View view{tensor.block, entry.offset, {}};
    for (int d = 0; d < entry.box.num_dims; ++d) view.shape.push_back(entry.box[d].size());
    views_[tensor.name] = std::move(view);
  }
  for (int block = 1; block + 1 < num_blocks(); ++block)
    for (const Fusion& fusion : fusions())
      for (const char* suffix : {".weight", ".bias"}) {
        View joint;
        for (const char* name : fusion.single) {
          const auto at = views_.find(layer_prefix(block) + name + suffix);
          if (at == views_.end()) continue;
          if (joint.shape.empty())
            joint = at->second;
          else
            joint.shape[0] += at->second.shape[0];
        }
        if (!joint.shape.empty()) views_[layer_prefix(block) + fusion.joint + suffix] = std::move(joint);
      }
}

void Parameters::add_segments() {
  std::vector<std::vector<std::pair<std::int64_t, bool>>> starts(blocks_.size());
  for (const LogicalTensor& tensor : tensors_)
    if (const auto at = views_.find(tensor.name); at != views_.end())
      starts[static_cast<std::size_t>(tensor.block)].emplace_back(at->second.offset, tensor.has_weight_decay);
  for (std::size_t b = 0; b < starts.size(); ++b) {
    std::sort(starts[b].begin(), starts[b].end());
    for (const auto& [offset, decays] : starts[b]) {
      if (!segments_[b].empty() && segments_[b].back().has_weight_decay == decays) continue;
      if (!segments_[b].empty()) segments_[b].back().end = offset;
      segments_[b].push_back({offset, 0, decays});
    }
    if (!segments_[b].empty()) segments_[b].back().end = blocks_[b].weights.numel();
  }
}

at::Tensor Parameters::view(const std::string& name, at::Tensor BlockState::*member) const {
  const auto at = views_.find(name);
  if (at == views_.end()) return {};
  const View& view = at->second;
  if (!(block(view.block).*member).defined()) return {};
  std::int64_t count = 1;
  for (const std::int64_t size : view.shape) count *= size;
  return (block(view.block).*member).narrow(0, view.offset, count).view(view.shape);
}

void Parameters::initialize(std::int64_t seed) {
  const RandomKey key = RandomKey(static_cast<std::uint64_t>(seed)).with("init");
  for (const LogicalTensor& tensor : tensors_) {
    if (!views_.contains(tensor.name) || tensor.init.kind == InitKind::given) continue;
    std::vector<double> values(static_cast<std::size_t>(tensor.shape.num_elements()));
    switch (tensor.init.kind) {
      case InitKind::normal:
        fill_normal(key.with(tensor.name), tensor.shape, Box(tensor.shape), values);
        for (double& value : values) value *= tensor.init.deviation;
        break;
      case InitKind::zeros:
      case InitKind::given:
        break;
      case InitKind::ones:
        std::fill(values.begin(), values.end(), 1.0);
        break;
    }
    set(tensor.name, values);
  }
}

void Parameters::set(const std::string& name, std::span<const double> values) {
  set_from(name, values.data(), std::ssize(values), at::kDouble);
}
void Parameters::set(const std::string& name, std::span<const float> values) {
  set_from(name, values.data(), std::ssize(values), at::kFloat);
}

void Parameters::set_from(const std::string& name, const void* values, std::int64_t count,
                          at::ScalarType type) {
  at::Tensor target = master(name);
  ensure(target.defined() && target.numel() == count, "{} values for {}", count, name);
  // from_blob reads only.
  target.copy_(at::from_blob(const_cast<void*>(values), target.sizes(), type));
  if (!block(views_.at(name).block).masters.is_same(block(views_.at(name).block).weights))
    weight(name).copy_(target);
}

std::vector<double> Parameters::get(const std::string& name, at::Tensor BlockState::*member) const {
  const at::Tensor source = view(name, member);
  ensure(source.defined(), "no tensor {}", name);
  std::vector<double> values(static_cast<std::size_t>(source.numel()));
  at::from_blob(values.data(), source.sizes(), at::kDouble).copy_(source);
  return values;
}

void Parameters::round_masters() {
  for (BlockState& state : blocks_)
    if (state.weights.defined() && !state.weights.is_same(state.masters)) state.weights.copy_(state.masters);
}

void Parameters::zero_gradients() {
  for (BlockState& state : blocks_)
    if (state.gradients.defined()) state.gradients.zero_();
}

Bytes Parameters::bytes() const {
  std::int64_t total = 0;
  for (const BlockState& state : blocks_) {
    if (!state.weights.defined()) continue;
    for (const at::Tensor* tensor : {&state.weights, &state.gradients, &state.first, &state.second})
      if (tensor->defined()) total += static_cast<std::int64_t>(tensor->nbytes());
    if (!state.masters.is_same(state.weights)) total += static_cast<std::int64_t>(state.masters.nbytes());
  }
  return Bytes(total);
}

}  // namespace optimus
