// See sizes.h. All layers of a model are alike, so one of each kind of block is looked at.
#include "schedule/sizes.h"

#include <algorithm>

namespace optimus {
namespace {

std::size_t kind_index(const ModelSpec& model, int block) {
  return static_cast<std::size_t>(block_kind(model, block));
}

bool stage_holds(const Stage& stage, int block) {
  return std::any_of(stage.chunks.begin(), stage.chunks.end(),
                     [block](const Chunk& chunk) { return block >= chunk.first() && block < chunk.end(); });
}

// This part's share of what `unit` cuts, 0 to 1.
double fraction(const ModelSpec& model, CutUnit unit, const LayerStrategy& strategy, int part) {
  if (strategy.tp == 1) return 1;
  if (unit == CutUnit::none) return strategy.sequence_parallel ? 1.0 / strategy.tp : 1;
  const Span span = tensor_parts(model, unit, strategy.tp)[static_cast<std::size_t>(part)];
  return static_cast<double>(span.size()) /
         static_cast<double>(num_units(model, unit) * unit_width(model, unit));
}

std::int64_t part_elements(const ModelSpec& model, const LogicalTensor& tensor, int tp, int part,
                           int shards) {
  Shape shape = tensor.shape;
  if (tensor.cut.unit != CutUnit::none && tp > 1)
    shape[tensor.cut.dim] = tensor_parts(model, tensor.cut.unit, tp)[static_cast<std::size_t>(part)].size();
  shape[0] = (shape[0] + shards - 1) / shards;
  return shape.num_elements();
}

}  // namespace

DeviceSizes::DeviceSizes(const Plan& plan, const ModelSpec& model, const Seat& seat)
    : plan_(plan),
      model_(model),
      seat_(seat),
      stage_(plan.pipelines[static_cast<std::size_t>(seat.pipeline)]
                 .stages[static_cast<std::size_t>(seat.stage)]) {
  for (const int block : {0, 1, plan.num_blocks - 1}) {
    tensors_[kind_index(model, block)] = logical_tensors(model, block);
    operations_[kind_index(model, block)] = operations(model, block_kind(model, block), plan.sequence_length);
  }
  has_own_copy_of_tied_embedding_ =
      model.is_tied && stage_holds(stage_, plan.num_blocks - 1) && !stage_holds(stage_, 0);
}

std::int64_t DeviceSizes::elements(int block, int shards) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  const int part = tensor_part(strategy);
  std::int64_t sum = 0;
  for (const LogicalTensor& tensor : tensors_[kind_index(model_, block)])
    sum += part_elements(model_, tensor, strategy.tp, part, shards);
  if (block == plan_.num_blocks - 1 && has_own_copy_of_tied_embedding_)
    for (const LogicalTensor& tensor : tensors_[kind_index(model_, 0)])
      if (tensor.is_also_head) sum += part_elements(model_, tensor, strategy.tp, part, shards);
  return sum;
}

Bytes DeviceSizes::state(int block, StateKind kind) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  const int first_sharding_stage = kind == StateKind::optimizer ? 1 : kind == StateKind::gradients ? 2 : 3;
  const int shards = strategy.zero >= first_sharding_stage ? shard_count(stage_, strategy) : 1;
  return Bytes(elements(block, shards) * state_bytes(plan_.precision, plan_.accumulators, kind));
}

Bytes DeviceSizes::part(int block, StateKind kind) const {
  return Bytes(elements(block, 1) * state_bytes(plan_.precision, plan_.accumulators, kind));
}

Bytes DeviceSizes::partial(int block) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  if (strategy.tp == 1) return Bytes(0);
  const std::vector<Span> keys = tensor_parts(model_, CutUnit::kv_heads, strategy.tp);
  std::int64_t held = 0, sum = 0;
  for (const Span& span : keys) held += span.size();
  const bool shares_keys = held > model_.kv_width();
  for (const LogicalTensor& tensor : tensors_[kind_index(model_, block)]) {
    const bool is_partial = tensor.cut.unit == CutUnit::none
                                ? strategy.sequence_parallel
                                : tensor.cut.unit == CutUnit::kv_heads && shares_keys;
    if (is_partial) sum += part_elements(model_, tensor, strategy.tp, tensor_part(strategy), 1);
  }
  return Bytes(sum * state_bytes(plan_.precision, plan_.accumulators, StateKind::gradients));
}

Bytes DeviceSizes::shared(int block) const {
  const bool is_end = block == 0 || block == plan_.num_blocks - 1;
  if (!is_end || !model_.is_tied || (stage_holds(stage_, 0) && stage_holds(stage_, plan_.num_blocks - 1)))
    return Bytes(0);
  const LayerStrategy& strategy = strategy_of(stage_, block);
  std::int64_t sum = 0;
  for (const LogicalTensor& tensor : tensors_[kind_index(model_, 0)])
    if (tensor.is_also_head) sum += part_elements(model_, tensor, strategy.tp, tensor_part(strategy), 1);
  return Bytes(sum * state_bytes(plan_.precision, plan_.accumulators, StateKind::gradients));
}

ActivationShare DeviceSizes::share(int block, int sequences, bool between_blocks) const {
  const Side side{static_cast<int>(stage_.devices.size()), strategy_of(stage_, block)};
  return share_of(side, seat_.index, sequences, plan_.sequence_length, between_blocks);
}

Bytes DeviceSizes::kept(int block, int sequences, RecomputeMode mode) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  const auto tokens = static_cast<double>(share(block, sequences, false).num_tokens());
  double bytes = 0;
  for (const Operation& operation : operations_[kind_index(model_, block)])
    for (const KeptTensor& tensor : operation.kept)
      if (mode <= tensor.kept_up_to)
        bytes += tensor.elements_per_token * tokens *
                 bytes_per_element(tensor.type, bytes_of(plan_.precision)) *
                 fraction(model_, tensor.cut, strategy, tensor_part(strategy));
  return Bytes(static_cast<std::int64_t>(bytes + 0.5));
}

Bytes DeviceSizes::boundary(int block, int sequences) const {
  return Bytes(share(block, sequences, true).num_tokens() * model_.hidden * bytes_of(plan_.precision));
}

Bytes DeviceSizes::whole_activation(int block, int sequences) const {
  return Bytes(share(block, sequences, false).num_tokens() * model_.hidden * bytes_of(plan_.precision));
}

Bytes DeviceSizes::ring(int block, int sequences) const {
  const LayerStrategy& strategy = strategy_of(stage_, block);
  const double width = 2.0 * static_cast<double>(model_.kv_width()) *
                       fraction(model_, CutUnit::kv_heads, strategy, tensor_part(strategy));
  const auto tokens = static_cast<double>(share(block, sequences, false).num_tokens());
  return Bytes(static_cast<std::int64_t>(tokens * width * bytes_of(plan_.precision)));
}

}  // namespace optimus
