// Implements sizes.h. Blocks with the same pattern have equal sizes, so only one block of each pattern is
// evaluated.
#include "schedule/sizes.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace optimus {
namespace {

std::size_t index_of(const ModelSpec& model, int block) {
  return static_cast<std::size_t>(pattern(model, block));
}

bool has_block(const Stage& stage, int block) {
  return std::any_of(stage.chunks.begin(), stage.chunks.end(), [block](const Chunk& chunk) {
    return block >= chunk.first_block() && block < chunk.end_block();
  });
}

// Whether both uses of a tied embedding share one copy in memory. This is the case if the first and the last
// block are in this stage and split in the same way.
bool has_shared_tied_embedding(const Stage& stage, int head) {
  if (!has_block(stage, 0) || !has_block(stage, head)) return false;
  const LayerStrategy &a = strategy_of(stage, 0), &b = strategy_of(stage, head);
  return a.tp == b.tp && a.cp == b.cp && a.zero == b.zero && a.shard_group == b.shard_group;
}

// The fraction, from 0 to 1, of a dimension that tensor-parallel rank `part` holds if the dimension is split
// in units of `unit`.
double fraction(const ModelSpec& model, SplitUnit unit, const LayerStrategy& strategy, int part) {
  if (strategy.tp == 1) return 1;
  if (unit == SplitUnit::none) return strategy.sequence_parallel ? 1.0 / strategy.tp : 1;
  const Span span = optimus::tensor_part(model, unit, strategy.tp, part);
  return static_cast<double>(span.size()) /
         static_cast<double>(num_units(model, unit) * unit_width(model, unit));
}

std::int64_t part_elements(const ModelSpec& model, const LogicalTensor& tensor, int tp, int part,
                           int shards) {
  Shape shape = tensor.shape;
  if (tensor.split.unit != SplitUnit::none && tp > 1)
    shape[tensor.split.dim] = optimus::tensor_part(model, tensor.split.unit, tp, part).size();
  shape[0] = (shape[0] + shards - 1) / shards;
  return shape.num_elements();
}

}  // namespace

DeviceSizes::DeviceSizes(const Plan& plan, const ModelSpec& model, const PlanLocation& location)
    : plan_(plan),
      model_(model),
      location_(location),
      stage_(plan.pipelines[static_cast<std::size_t>(location.pipeline)]
                 .stages[static_cast<std::size_t>(location.stage)]) {
  const int count = num_patterns(model);
  tensors_.resize(static_cast<std::size_t>(count)), operations_.resize(static_cast<std::size_t>(count));
  for (int p = 0; p < count; ++p) {
    const int block = first_of_pattern(model, p);
    if (block < 0) continue;
    tensors_[index_of(model, block)] = logical_tensors(model, block);
    operations_[index_of(model, block)] = operations(model, block, plan.sequence_length);
  }
  has_shared_tied_embedding_ = model.is_tied && has_shared_tied_embedding(stage_, plan.num_blocks - 1);
}

std::int64_t DeviceSizes::elements(int block, int shards, bool with_embedding) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  const int part = tensor_part(strategy);
  std::int64_t sum = 0;
  for (const LogicalTensor& tensor : tensors_[index_of(model_, block)])
    if (!is_expert(tensor.split.unit)) sum += part_elements(model_, tensor, strategy.tp, part, shards);
  if (block == plan_.num_blocks - 1 && model_.is_tied && with_embedding)
    for (const LogicalTensor& tensor : tensors_[index_of(model_, 0)])
      if (tensor.is_tied_to_head) sum += part_elements(model_, tensor, strategy.tp, part, shards);
  return sum;
}

std::int64_t DeviceSizes::expert_elements(int block, int shards) const {
  const int ep = strategy_of(stage_, block).ep;
  std::int64_t sum = 0;
  for (const LogicalTensor& tensor : tensors_[index_of(model_, block)])
    if (is_expert(tensor.split.unit)) sum += part_elements(model_, tensor, ep, location_.index % ep, shards);
  return sum;
}

Bytes DeviceSizes::state(int block, StateKind kind) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  const std::int64_t num_elements =
      elements(block, shards_of(stage_, strategy, kind), !has_shared_tied_embedding_) +
      expert_elements(block, expert_shards_of(stage_, strategy, kind));
  return Bytes(num_elements * state_bytes(plan_.precision, plan_.accumulators, kind));
}

Bytes DeviceSizes::experts(int block, StateKind kind) const {
  return Bytes(expert_elements(block, 1) * state_bytes(plan_.precision, plan_.accumulators, kind));
}

Bytes DeviceSizes::part(int block, StateKind kind) const {
  // A head that shares the embedding's memory still needs the embedding's weights in its gather buffer. The
  // gradient is stored with the embedding.
  const bool with_embedding = kind == StateKind::weights || !has_shared_tied_embedding_;
  return Bytes(elements(block, 1, with_embedding) * state_bytes(plan_.precision, plan_.accumulators, kind));
}

// Each tensor is aligned separately, which takes at least as much memory as fusing some of the tensors.
Bytes DeviceSizes::aligned_size(int block, StateKind kind, BufferLayout buffer_layout) const {
  const LayerStrategy& s = strategy_of(stage_, block);
  const int width = state_bytes(plan_.precision, plan_.accumulators, kind);
  // All buffers of one block have the element offsets of the buffer with the narrowest data type.
  const std::int64_t step = kAlignment / std::min(width, bytes_of(plan_.precision));
  std::int64_t elements = 0;
  const auto add = [&](const LogicalTensor& tensor) {
    const bool is_expert_tensor = is_expert(tensor.split.unit);
    const int parts = is_expert_tensor ? s.ep : s.tp,
              shards = is_expert_tensor ? expert_shard_count(stage_, s) : shard_count(stage_, s);
    const std::int64_t own_elements = part_elements(model_, tensor, parts, location_.index % parts,
                                                    buffer_layout == BufferLayout::whole ? 1 : shards);
    // For gradients, the shards of the members are followed by space for their sum.
    const int copies = buffer_layout != BufferLayout::exchange ? 1
                       : kind == StateKind::gradients          ? shards + 1
                                                               : shards;
    elements += (own_elements + step - 1) / step * step * copies;
  };
  for (const LogicalTensor& tensor : tensors_[index_of(model_, block)]) add(tensor);
  const bool with_embedding = kind == StateKind::weights || !has_shared_tied_embedding_;
  if (block == plan_.num_blocks - 1 && model_.is_tied && with_embedding)
    for (const LogicalTensor& tensor : tensors_[index_of(model_, 0)])
      if (tensor.is_tied_to_head) add(tensor);
  return Bytes(elements * width);
}

Bytes DeviceSizes::whole_buffer(int block, StateKind kind) const {
  return aligned_size(block, kind, BufferLayout::whole);
}
Bytes DeviceSizes::exchange_buffer(int block, StateKind kind) const {
  return aligned_size(block, kind, BufferLayout::exchange);
}
Bytes DeviceSizes::shard_buffer(int block, StateKind kind) const {
  return aligned_size(block, kind, BufferLayout::shard);
}

// If the weights serve as master weights, this device stores all of them unless weights are sharded too (ZeRO
// 3).
Bytes DeviceSizes::copy_state(int block) const {
  const LayerStrategy& s = strategy_of(stage_, block);
  if (!has_shard_copies(plan_, s) || s.offload) return Bytes(0);
  const bool has_sharded_weights = bytes_of(plan_.precision) >= 4 && s.zero == 3;
  return state(block, StateKind::optimizer) +
         (has_sharded_weights ? state(block, StateKind::weights) : Bytes(0));
}

std::map<std::vector<int>, Bytes> DeviceSizes::partial_gradients(int block) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  std::map<std::vector<int>, Bytes> sums;
  if (strategy.tp == 1) return sums;
  const int bytes = state_bytes(plan_.precision, plan_.accumulators, StateKind::gradients);
  const std::vector<Span> keys = tensor_parts(model_, SplitUnit::kv_heads, strategy.tp);
  const Span own_span = keys[static_cast<std::size_t>(tensor_part(strategy))];
  std::vector<int> all_parts(static_cast<std::size_t>(strategy.tp));
  std::iota(all_parts.begin(), all_parts.end(), 0);
  for (const LogicalTensor& tensor : tensors_[index_of(model_, block)]) {
    if (tensor.split.unit == SplitUnit::none && (strategy.sequence_parallel || tensor.is_per_head))
      sums[all_parts] += Bytes(tensor.shape.num_elements() * bytes);
    if (tensor.split.unit != SplitUnit::kv_heads) continue;
    const std::int64_t row = tensor.shape.num_elements() / tensor.shape[tensor.split.dim];
    for (std::int64_t head = own_span.begin; head < own_span.end; head += model_.head_dim) {
      std::vector<int> owners;
      for (int part = 0; part < strategy.tp; ++part)
        if (const Span& span = keys[static_cast<std::size_t>(part)]; span.begin <= head && head < span.end)
          owners.push_back(part);
      if (owners.size() > 1) sums[owners] += Bytes(row * model_.head_dim * bytes);
    }
  }
  return sums;
}

Bytes DeviceSizes::shared_gradients(int block) const {
  const bool is_end = block == 0 || block == plan_.num_blocks - 1;
  if (!is_end || !model_.is_tied || has_shared_tied_embedding_) return Bytes(0);
  const LayerStrategy& strategy = strategy_of(stage_, block);
  std::int64_t sum = 0;
  for (const LogicalTensor& tensor : tensors_[index_of(model_, 0)])
    if (tensor.is_tied_to_head) sum += part_elements(model_, tensor, strategy.tp, tensor_part(strategy), 1);
  return Bytes(sum * state_bytes(plan_.precision, plan_.accumulators, StateKind::gradients));
}

ActivationShare DeviceSizes::share(int block, int sequences, bool between_blocks) const {
  const Side side{static_cast<int>(stage_.devices.size()), strategy_of(stage_, block)};
  return share_of(side, location_.index, sequences, plan_.sequence_length, between_blocks);
}

// With sequence parallelism, tensors that are not split by features are split by rows.
void DeviceSizes::add(ActivationBufferBuilder& activation_buffer, int block, std::int64_t tokens,
                      const SavedTensor& tensor) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  const double share = fraction(model_, tensor.split, strategy, tensor_part(strategy));
  const bool is_row_split = tensor.split == SplitUnit::none && share < 1;
  const double columns = tensor.elements_per_token * (is_row_split ? 1 : share);
  if (!is_row_split)
    return activation_buffer.add(tensor.name, tokens, std::llround(columns), tensor.type, tensor.matrix);
  const Span slice = shard_span(tokens, strategy.tp, tensor_part(strategy));
  activation_buffer.add(tensor.name, slice.size(), std::llround(columns), tensor.type, tensor.matrix,
                        shard_span(tokens, strategy.tp, 0).size());
}

// Adds tensors that exist only with tensor parallelism. With sequence parallelism, these are the whole
// activations that are gathered or summed, in addition to the slices. With a split vocabulary, they are the
// logit statistics that the tensor-parallel ranks exchange.
void DeviceSizes::add_whole(ActivationBufferBuilder& activation_buffer, int block, std::int64_t tokens,
                            bool is_saved) const {
  const LayerStrategy& s = strategy_of(stage_, block);
  if (s.tp == 1) return;
  const std::int64_t padded = shard_span(tokens, s.tp, 0).size() * s.tp;
  const auto add_activation = [&](const char* name) {
    if (s.sequence_parallel && !is_saved)
      activation_buffer.add(name, tokens, model_.hidden, SavedType::activation, "", padded);
  };
  switch (block_kind(model_, block)) {
    case BlockKind::embedding:
      return add_activation("embedding.whole");
    case BlockKind::layer:
      add_activation("attention.whole");
      return add_activation("mlp.whole");
    case BlockKind::head:
      add_activation("head.whole");
      if (is_saved) return activation_buffer.add("head.logsumexp", tokens, 1, SavedType::fp32);
      activation_buffer.add("head.statistics", tokens, 3, SavedType::fp32);
      return activation_buffer.add("head.statistics.all", s.tp * tokens, 3, SavedType::fp32);
    case BlockKind::custom:
      return;
  }
}

ActivationBuffer DeviceSizes::activations(int block, int sequences, bool is_saved) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  const RecomputeMode mode = strategy.recompute;
  const std::int64_t tokens = share(block, sequences, false).num_tokens();
  ActivationBufferBuilder activation_buffer(bytes_of(plan_.precision));
  for (const Operation& operation : operations_[index_of(model_, block)])
    for (const SavedTensor& tensor : operation.saved)
      if ((mode <= tensor.strongest_saving_mode) == is_saved) add(activation_buffer, block, tokens, tensor);
  // The last layer of a recompute group is recomputed including its norm, for the statistics of the norm.
  // Its output is stored but not used.
  if (!is_saved && strategy.recompute_layers > 1 && model_.norm_position == NormPosition::post &&
      block_kind(model_, block) == BlockKind::layer)
    add(activation_buffer, block, tokens,
        {"norm2.output", static_cast<double>(model_.hidden), SavedType::activation});
  add_whole(activation_buffer, block, tokens, is_saved);
  if (const RingShape ring = ring_shape(block, sequences); ring.rows > 0 && !is_saved) {
    for (const char* name : {"ring.0", "ring.1"})
      activation_buffer.add(name, ring.rows, ring.columns, SavedType::activation);
    add(activation_buffer, block, tokens,
        {"ring.sum", static_cast<double>(model_.heads * model_.head_dim), SavedType::fp32, SplitUnit::heads});
  }
  return activation_buffer.take();
}

ActivationBuffer DeviceSizes::saved(int block, int sequences) const {
  return activations(block, sequences, true);
}
ActivationBuffer DeviceSizes::transient(int block, int sequences) const {
  return activations(block, sequences, false);
}

ActivationBuffer DeviceSizes::activation_gradients(int block, int sequences, bool is_for_weights) const {
  const std::int64_t tokens = share(block, sequences, false).num_tokens();
  const LayerStrategy& s = strategy_of(stage_, block);
  const BlockKind kind = block_kind(model_, block);
  ActivationBufferBuilder activation_buffer(bytes_of(plan_.precision));
  const auto add_whole_gradient = [&](const std::string& name) {
    activation_buffer.add(name, tokens, model_.hidden, SavedType::activation, "",
                          shard_span(tokens, s.tp, 0).size() * s.tp);
  };
  // With sequence parallelism, the input gradient of a layer is one term of a sum over all tokens, and
  // weight gradients need the output gradient of all tokens.
  const auto is_whole = [&](const GradientTensor& tensor) {
    return s.sequence_parallel && kind == BlockKind::layer && tensor.name == "input.gradient";
  };
  for (const GradientTensor& tensor : optimus::gradients(model_, block)) {
    if (tensor.is_for_weights != is_for_weights) continue;
    if (is_whole(tensor))
      add_whole_gradient(tensor.name);
    else
      add(activation_buffer, block, tokens,
          {tensor.name, tensor.elements_per_token, SavedType::activation, tensor.split, RecomputeMode::none,
           tensor.matrix});
  }
  if (s.sequence_parallel && is_for_weights && kind == BlockKind::layer)
    for (const char* name : {"mlp.whole.gradient", "attention.whole.gradient"}) add_whole_gradient(name);
  if (s.sequence_parallel && is_for_weights && kind == BlockKind::embedding)
    add_whole_gradient("embedding.whole.gradient");
  if (const RingShape ring = ring_shape(block, sequences); ring.rows > 0 && !is_for_weights)
    for (const char* name : {"ring.gradient.0", "ring.gradient.1"})
      activation_buffer.add(name, ring.rows, ring.columns, SavedType::fp32);
  return activation_buffer.take();
}

ActivationBuffer DeviceSizes::gradients(int block, int sequences) const {
  return activation_gradients(block, sequences, true);
}
ActivationBuffer DeviceSizes::transient_gradients(int block, int sequences) const {
  return activation_gradients(block, sequences, false);
}

ActivationBuffer DeviceSizes::logits(int block, int sequences) const {
  const std::int64_t rows = logit_rows(share(block, sequences, false).num_tokens());
  ActivationBufferBuilder activation_buffer(bytes_of(plan_.precision));
  // cuBLASLt requires the rows of logits to be padded to multiples of 128 bytes.
  constexpr int kRowBytes = 128;
  const LayerStrategy& strategy = strategy_of(stage_, block);
  const std::int64_t width =
      optimus::tensor_part(model_, SplitUnit::vocab, strategy.tp, tensor_part(strategy)).size();
  const auto unit = static_cast<std::int64_t>(kRowBytes / bytes_of(plan_.precision));
  activation_buffer.add("head.logits", rows, (width + unit - 1) / unit * unit, SavedType::activation);
  return activation_buffer.take();
}

Bytes DeviceSizes::graph(int block, int sequences) const {
  if (!model_.is_custom()) return Bytes(0);
  return Bytes(
      model_.custom[static_cast<std::size_t>(block)].graph.of(share(block, sequences, false).num_tokens()));
}

Bytes DeviceSizes::graph_work(int block, int sequences) const {
  if (!model_.is_custom()) return Bytes(0);
  return Bytes(model_.custom[static_cast<std::size_t>(block)].graph_work.of(
      share(block, sequences, false).num_tokens()));
}

Bytes DeviceSizes::boundary(int block, int sequences, std::int64_t width) const {
  return Bytes(share(block, sequences, true).num_tokens() * width * bytes_of(plan_.precision));
}

Bytes DeviceSizes::whole_activation(int block, int sequences) const {
  return Bytes(share(block, sequences, false).num_tokens() * model_.hidden * bytes_of(plan_.precision));
}

Bytes DeviceSizes::joined_activation(int block, int sequences, std::int64_t width) const {
  const int tp = strategy_of(stage_, block).tp;
  return Bytes(share(block, sequences, false).num_tokens() * ((width + tp - 1) / tp) * tp *
               bytes_of(plan_.precision));
}

DeviceSizes::RingShape DeviceSizes::ring_shape(int block, int sequences) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  if (strategy.cp == 1 || block_kind(model_, block) != BlockKind::layer) return {};
  const double width = static_cast<double>(model_.kv_width() + model_.kv_heads * model_.value_dim()) *
                       fraction(model_, SplitUnit::kv_heads, strategy, tensor_part(strategy));
  // Padded to the largest number of positions on any context-parallel rank, so that all messages of a ring
  // have equal size.
  const std::int64_t positions = 2 * ((plan_.sequence_length + 2 * strategy.cp - 1) / (2 * strategy.cp));
  return {share(block, sequences, false).samples.size() * positions, std::llround(width)};
}

Bytes DeviceSizes::ring(int block, int sequences) const {
  const RingShape shape = ring_shape(block, sequences);
  return Bytes(shape.rows * shape.columns * bytes_of(plan_.precision));
}

// Gradients are summed over several ring steps, so they have at least fp32 precision.
Bytes DeviceSizes::ring_gradients(int block, int sequences) const {
  const RingShape shape = ring_shape(block, sequences);
  return Bytes(shape.rows * shape.columns * std::max(4, bytes_of(plan_.precision)));
}

Bytes DeviceSizes::dispatched_tokens(int block, int sequences) const {
  const LayerStrategy& s = strategy_of(stage_, block);
  const int dp = data_parallel(stage_, s);
  // Padded to the largest number of positions on any context-parallel rank, as in ring(), so that all members
  // of a group specify the same size.
  const std::int64_t positions = 2 * ((plan_.sequence_length + 2 * s.cp - 1) / (2 * s.cp));
  const std::int64_t tokens = (sequences + dp - 1) / dp * ((positions + s.tp - 1) / s.tp);
  return Bytes(tokens * model_.hidden * model_.mixture.experts_per_token * bytes_of(plan_.precision));
}

int best_recompute_group_size(const Plan& plan, const ModelSpec& model) {
  const DeviceSizes sizes(plan, model, PlanLocation{});
  const int sequences = plan.pipelines[0].microbatches[0];
  const auto input = static_cast<double>(sizes.saved(1, sequences).bytes.value),
             all_activations = static_cast<double>(sizes.transient(1, sequences).bytes.value) + input;
  const double best = std::sqrt(static_cast<double>(model.layers) * input / all_activations);
  return std::max(1, static_cast<int>(std::lround(best)));
}

}  // namespace optimus
