// See state_exchange.h.
#include "engine/state_exchange.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {
namespace {

constexpr int kCopyTag = 2;  // distinct from the tags of activations and their gradients (crossing.cpp)

// Returns the first `count` elements of a byte buffer as a flat tensor of another type.
at::Tensor leading_elements(const at::Tensor& bytes, std::int64_t count, at::ScalarType type) {
  return bytes.narrow(0, 0, count * static_cast<std::int64_t>(at::elementSize(type))).view(type);
}

}  // namespace

StateExchange::StateExchange(const Plan& plan, const ModelSpec& model, const Program& program,
                             Parameters& parameters, Comm* comm)
    : plan_(plan),
      model_(model),
      program_(program),
      stage_(plan.pipelines[static_cast<std::size_t>(program.location.pipeline)]
                 .stages[static_cast<std::size_t>(program.location.stage)]),
      parameters_(parameters),
      comm_(comm),
      head_(num_blocks(model) - 1),
      element_(types_of(plan.precision).element),
      wide_(types_of(plan.precision).wide) {
  find_shared_pieces();
}

void StateExchange::gather_in_fp8(Fp8Scales& scales, const Kernels& kernels) {
  scales_ = &scales, kernels_ = &kernels;
  for (const int block : fp8_blocks(plan_)) {
    const BlockShape& shape = parameters_.shape(block);
    if (shape.tensors.empty() || shape.zero < 3 || shape.num_shards == 1) continue;
    const Fp8Shards& packer = fp8_shards_.try_emplace(block, shape, block - 1, element_).first->second;
    const auto unpacked_bytes = shape.shard_elements * static_cast<std::int64_t>(at::elementSize(element_));
    if (packer.bytes() > unpacked_bytes)
      fp8_shards_.erase(block);  // the matrices are so small that padding outweighs the savings
    else
      scales.expect_rounded_weights(block - 1);
  }
}

const Fp8Shards* StateExchange::fp8_shards(int block) const {
  const auto match = fp8_shards_.find(block);
  return match == fp8_shards_.end() || !scales_->uses_fp8() ? nullptr : &match->second;
}

void StateExchange::find_shared_pieces() {
  const bool is_trained = parameters_.block(stage_.chunks.back().end_block() - 1).gradients.defined();
  if (!is_trained || comm_ == nullptr) return;
  for (const SharedSum& sum : shared_sums(plan_, model_, program_.device)) {
    std::vector<SharedPiece>& pieces = shared_pieces_[{sum.block, sum.members}];
    for (const TensorBox& shared : sum.boxes) pieces.push_back(shared_piece(shared, sum.members));
  }
}

// If several tensor-parallel ranks store the same rows, only the rank with the lowest index contributes them.
StateExchange::SharedPiece StateExchange::shared_piece(const TensorBox& shared,
                                                       const std::vector<int>& members) const {
  const std::string& name = parameters_.tensors()[static_cast<std::size_t>(shared.tensor)].name;
  const int block = parameters_.block_of(name);
  const BlockShape& shape = parameters_.shape(block);
  const LocalTensor& local_tensor = *parameters_.find(name);
  Box own_box = local_tensor.box;
  const Span rows = shape.own_rows(local_tensor);
  own_box[0] = {local_tensor.box[0].begin + rows.begin, local_tensor.box[0].begin + rows.end};
  std::vector<std::int64_t> sizes;
  for (int d = 0; d < own_box.num_dims; ++d) sizes.push_back(own_box[d].size());
  SharedPiece piece;
  piece.gradient = parameters_.block(block)
                       .gradients
                       .narrow(0, shape.num_shards == 1 ? local_tensor.offset : local_tensor.shard_offset,
                               own_box.num_elements())
                       .view(sizes);
  for (int d = 0; d < own_box.num_dims; ++d)
    piece.gradient = piece.gradient.narrow(d, shared.box[d].begin - own_box[d].begin, shared.box[d].size());
  // Considers the shards of all tensor-parallel ranks of one copy, because the rows that two ranks share may
  // be in different shards of each rank.
  const int copy = strategy_of(stage_, block).tp * shape.num_shards,
            first = program_.location.index / copy * copy;
  for (int index = first; index < program_.location.index; ++index)
    if (std::binary_search(members.begin(), members.end(), stage_.devices[static_cast<std::size_t>(index)]))
      piece.contributes = false;
  return piece;
}

// Returns the offset after the tied embedding if another stage stores the embedding too, otherwise 0. The
// embedding is the first tensor of its block and is summed separately.
std::int64_t StateExchange::end_of_shared(int block) const {
  const bool has_both_ends =
      stage_.chunks.front().first_block() == 0 && stage_.chunks.back().end_block() == plan_.num_blocks;
  const BlockShape& shape = parameters_.shape(block);
  const LogicalTensor& first = parameters_.tensors()[static_cast<std::size_t>(shape.tensors.front().tensor)];
  if (has_both_ends || !first.is_tied_to_head) return 0;
  const bool is_whole = shape.num_shards == 1;
  if (shape.tensors.size() == 1) return is_whole ? shape.whole_elements : shape.shard_elements;
  return is_whole ? shape.tensors[1].offset : shape.tensors[1].shard_offset;
}

std::string StateExchange::description_of(const Instruction& instruction) const {
  return fmt::format("{} of block {}", instruction.op == Op::gather_parameters ? "weights" : "gradients",
                     instruction.block);
}

std::unique_ptr<Pending> StateExchange::begin(const Instruction& instruction, const StateBuffers& buffers) {
  ensure(comm_ != nullptr, "a program for one device contains {}", text(instruction.op));
  if (instruction.op == Op::sync_gradients) return begin_sync(instruction, buffers);
  if (gathered_shape(instruction.block).tensors.empty()) return nullptr;  // a custom block without parameters
  if (instruction.op == Op::send_copy || instruction.op == Op::receive_copy)
    return begin_copy_exchange(instruction, buffers);
  return instruction.op == Op::gather_parameters ? begin_gather(instruction, buffers)
                                                 : begin_reduce(instruction, buffers);
}

// The shard is contiguous in the buffers of both devices.
std::unique_ptr<Pending> StateExchange::begin_copy_exchange(const Instruction& instruction,
                                                            const StateBuffers& buffers) {
  if (parameters_.shape(instruction.block).tensors.empty()) return nullptr;
  if (instruction.op == Op::send_copy)
    return comm_->send(instruction.peer, own_gradients(instruction.block), kCopyTag,
                       description_of(instruction));
  return comm_->receive(instruction.peer, copied_gradients(instruction.block, buffers), kCopyTag,
                        description_of(instruction));
}

at::Tensor StateExchange::copied_gradients(int block, const StateBuffers& buffers) const {
  return leading_elements(buffers.copy_gradients, parameters_.shape(block).shard_elements, wide_);
}

at::Tensor StateExchange::copied_weights(int block, const StateBuffers& buffers) const {
  return leading_elements(buffers.exchange, parameters_.shape(block).shard_elements, element_);
}

// Returns the shape of the tensors that a gather of the block collects. For a head with tied embeddings, the
// word embeddings follow the head's own tensors.
BlockShape StateExchange::gathered_shape(int block) const {
  BlockShape shape = parameters_.shape(block);
  const bool has_own_embedding = stage_.chunks.front().first_block() > 0;  // then the head has its own copy
  if (block != head_ || !model_.is_tied || shape.zero < 3 || has_own_embedding) return shape;
  for (const LocalTensor& local_tensor : parameters_.shape(0).tensors) {
    if (!parameters_.tensors()[static_cast<std::size_t>(local_tensor.tensor)].is_tied_to_head) continue;
    LocalTensor word_embedding = local_tensor;
    word_embedding.offset = shape.whole_elements, word_embedding.shard_offset = shape.shard_elements;
    shape.tensors.push_back(word_embedding);
    shape.whole_elements += word_embedding.rows * word_embedding.row;
    shape.shard_elements += word_embedding.shard_rows * word_embedding.row;
  }
  return shape;
}

// Every member writes its shard to its position in the buffer of all shards.
std::unique_ptr<Pending> StateExchange::begin_gather(const Instruction& instruction,
                                                     const StateBuffers& buffers) {
  const BlockShape shape = gathered_shape(instruction.block);
  const BlockState& state = parameters_.block(instruction.block);
  const Group& group = program_.groups[static_cast<std::size_t>(instruction.group)];
  if (const Fp8Shards* packer = fp8_shards(instruction.block)) {
    const at::Tensor all_shards =
        leading_elements(buffers.exchange, shape.num_shards * packer->bytes(), at::kByte);
    const at::Tensor own_shard = all_shards.narrow(0, shape.shard * packer->bytes(), packer->bytes());
    packer->pack(state.weights, *scales_, *kernels_, own_shard);
    return comm_->all_gather(group, own_shard, all_shards, description_of(instruction));
  }
  const at::Tensor all_shards =
      leading_elements(buffers.exchange, shape.num_shards * shape.shard_elements, element_);
  at::Tensor own_shard = all_shards.narrow(0, shape.shard * shape.shard_elements, shape.shard_elements);
  if (shape.zero == 3) {
    const std::int64_t num_own_elements = state.weights.numel();
    own_shard.narrow(0, 0, num_own_elements).copy_(state.weights);
    if (num_own_elements < shape.shard_elements) {
      const LocalTensor& word_embedding = shape.tensors.back();
      const at::Tensor& embedding = parameters_.block(0).weights;
      for (const LocalTensor& local_tensor : parameters_.shape(0).tensors)
        if (local_tensor.name == word_embedding.name)
          own_shard.narrow(0, num_own_elements, shape.shard_elements - num_own_elements)
              .copy_(embedding.narrow(0, local_tensor.shard_offset, shape.shard_elements - num_own_elements));
    }
  } else {
    for (const StateRange& run : parameters_.update_ranges_of(instruction.block))
      own_shard.narrow(0, run.shard, run.length).copy_(state.weights.narrow(0, run.whole, run.length));
  }
  return comm_->all_gather(group, own_shard, all_shards, description_of(instruction));
}

// Returns the rows whose gradients are summed over the tensor-parallel ranks in the instruction's group.
// Devices are in the order of tensor-parallel ranks, so the parts that members have follow from their indices
// in the stage.
std::vector<StateExchange::Rows> StateExchange::partial_rows(const Instruction& instruction) const {
  const LayerStrategy& s = strategy_of(stage_, instruction.block);
  std::vector<int> parts;
  for (const int device : program_.groups[static_cast<std::size_t>(instruction.group)].members)
    parts.push_back(static_cast<int>(std::find(stage_.devices.begin(), stage_.devices.end(), device) -
                                     stage_.devices.begin()) %
                    s.tp);
  const std::vector<Span> kv_spans = tensor_parts(model_, SplitUnit::kv_heads, s.tp);
  const Span own_rows = kv_spans[static_cast<std::size_t>(program_.location.index % s.tp)];
  const auto owners_of = [&](std::int64_t row) {
    std::vector<int> owners;
    for (int part = 0; part < s.tp; ++part)
      if (const Span& span = kv_spans[static_cast<std::size_t>(part)]; span.begin <= row && row < span.end)
        owners.push_back(part);
    return owners;
  };
  std::vector<Rows> result;
  const BlockShape& shape = parameters_.shape(instruction.block);
  for (std::size_t t = 0; t < shape.tensors.size(); ++t) {
    const LocalTensor& local_tensor = shape.tensors[t];
    const TensorSplit split = parameters_.tensors()[static_cast<std::size_t>(local_tensor.tensor)].split;
    if (split.unit == SplitUnit::none && (s.sequence_parallel || local_tensor.is_per_head) &&
        std::ssize(parts) == s.tp)
      result.push_back({t, {0, local_tensor.rows}});
    if (split.unit != SplitUnit::kv_heads) continue;
    for (std::int64_t row = own_rows.begin; row < own_rows.end; row += model_.head_dim)
      if (owners_of(row) == parts && parts.size() > 1)
        result.push_back({t, {row - own_rows.begin, row - own_rows.begin + model_.head_dim}});
  }
  return result;
}

at::Tensor StateExchange::whole_gradients(const Instruction& instruction, const StateBuffers& buffers) const {
  if (!buffers.whole.defined()) return parameters_.block(instruction.block).gradients;
  return leading_elements(buffers.whole, parameters_.shape(instruction.block).whole_elements, wide_);
}

at::Tensor StateExchange::own_gradients(int block) const {
  const at::Tensor& gradients = parameters_.block(block).gradients;
  const BlockShape& shape = parameters_.shape(block);
  return shape.num_shards == 1 ? gradients : gradients.narrow(0, 0, shape.shard_elements);
}

template <typename Copy>
void StateExchange::for_each_partial(const Instruction& instruction, const StateBuffers& buffers, Copy copy) {
  const BlockShape& shape = parameters_.shape(instruction.block);
  const at::Tensor gradients = whole_gradients(instruction, buffers);
  const at::Tensor packed = leading_elements(
      buffers.exchange, instruction.bytes / static_cast<std::int64_t>(at::elementSize(wide_)), wide_);
  std::int64_t offset = 0;
  for (const Rows& rows : partial_rows(instruction)) {
    const LocalTensor& local_tensor = shape.tensors[rows.tensor];
    const std::int64_t count = rows.rows.size() * local_tensor.row;
    copy(gradients.narrow(0, local_tensor.offset + rows.rows.begin * local_tensor.row, count),
         packed.narrow(0, offset, count));
    offset += count;
  }
  ensure(offset == packed.numel(), "packed {} of {} elements for a sum over {} tensor-parallel ranks", offset,
         packed.numel(), program_.groups[static_cast<std::size_t>(instruction.group)].members.size());
}

std::unique_ptr<Pending> StateExchange::begin_reduce(const Instruction& instruction,
                                                     const StateBuffers& buffers) {
  const Group& group = program_.groups[static_cast<std::size_t>(instruction.group)];
  const BlockShape& shape = parameters_.shape(instruction.block);
  if (group.role == Role::replica) {
    const at::Tensor gradients = own_gradients(instruction.block);
    const std::int64_t begin = end_of_shared(instruction.block);
    return comm_->all_reduce(group, gradients.narrow(0, begin, gradients.numel() - begin), ReduceOp::sum,
                             description_of(instruction));
  }
  if (group.role == Role::tensor) {
    for_each_partial(instruction, buffers, [](const at::Tensor& part, at::Tensor to) { to.copy_(part); });
    const std::int64_t count = instruction.bytes / static_cast<std::int64_t>(at::elementSize(wide_));
    return comm_->all_reduce(group, leading_elements(buffers.exchange, count, wide_), ReduceOp::sum,
                             description_of(instruction));
  }
  ensure(group.role == Role::shard, "gradients cannot be reduced over a group with role {}",
         static_cast<int>(group.role));
  const std::int64_t num_elements = shape.num_shards * shape.shard_elements;
  const at::Tensor exchange =
      leading_elements(buffers.exchange, num_elements + (shape.zero >= 2 ? shape.shard_elements : 0), wide_);
  at::Tensor shards = exchange.narrow(0, 0, num_elements);
  to_shards(shape, whole_gradients(instruction, buffers), shards);
  const at::Tensor sum = shape.zero >= 2 ? exchange.narrow(0, num_elements, shape.shard_elements)
                                         : own_gradients(instruction.block);
  return comm_->reduce_scatter(group, shards, sum, description_of(instruction));
}

std::unique_ptr<Pending> StateExchange::begin_sync(const Instruction& instruction,
                                                   const StateBuffers& buffers) {
  const Group& group = program_.groups[static_cast<std::size_t>(instruction.group)];
  const std::int64_t count = instruction.bytes / static_cast<std::int64_t>(at::elementSize(wide_));
  const at::Tensor packed = leading_elements(buffers.exchange, count, wide_);
  std::int64_t offset = 0;
  for (const SharedPiece& piece : shared_pieces_.at({instruction.block, group.members})) {
    at::Tensor to = packed.narrow(0, offset, piece.gradient.numel()).view(piece.gradient.sizes());
    if (piece.contributes)
      to.copy_(piece.gradient);
    else
      to.zero_();
    offset += piece.gradient.numel();
  }
  return comm_->all_reduce(group, packed, ReduceOp::sum, description_of(instruction));
}

void StateExchange::end_sync(const Instruction& instruction, const StateBuffers& buffers) {
  const Group& group = program_.groups[static_cast<std::size_t>(instruction.group)];
  const std::int64_t count = instruction.bytes / static_cast<std::int64_t>(at::elementSize(wide_));
  const at::Tensor packed = leading_elements(buffers.exchange, count, wide_);
  std::int64_t offset = 0;
  for (const SharedPiece& piece : shared_pieces_.at({instruction.block, group.members})) {
    at::Tensor to = piece.gradient;
    to.copy_(packed.narrow(0, offset, to.numel()).view(to.sizes()));
    offset += to.numel();
  }
}

void StateExchange::end(const Instruction& instruction, const StateBuffers& buffers) {
  if (instruction.op == Op::sync_gradients) return end_sync(instruction, buffers);
  const BlockShape& shape = parameters_.shape(instruction.block);
  if (instruction.op == Op::gather_parameters) {
    const BlockShape gathered = gathered_shape(instruction.block);
    at::Tensor whole = gathered.zero == 3 ? leading_elements(buffers.whole, gathered.whole_elements, element_)
                                          : parameters_.block(instruction.block).weights;
    if (const Fp8Shards* packer = fp8_shards(instruction.block))
      return packer->unpack(
          leading_elements(buffers.exchange, gathered.num_shards * packer->bytes(), at::kByte), *scales_,
          whole);
    const at::Tensor shards =
        leading_elements(buffers.exchange, gathered.num_shards * gathered.shard_elements, element_);
    return from_shards(gathered, shards, whole);
  }
  const Role role = program_.groups[static_cast<std::size_t>(instruction.group)].role;
  if (role == Role::tensor)
    return for_each_partial(instruction, buffers,
                            [](at::Tensor part, const at::Tensor& from) { part.copy_(from); });
  if (role != Role::shard || shape.zero < 2) return;
  const std::int64_t num_elements = shape.num_shards * shape.shard_elements;
  parameters_.block(instruction.block)
      .gradients.add_(leading_elements(buffers.exchange, num_elements + shape.shard_elements, wide_)
                          .narrow(0, num_elements, shape.shard_elements));
}

}  // namespace optimus
