// See crossing.h.
#include "engine/crossing.h"

#include <algorithm>

#include "base/error.h"
#include "layout/layout.h"
#include "schedule/share.h"

namespace optimus {
namespace {

const Stage& stage_containing(const Pipeline& pipeline, int block) {
  for (const Stage& stage : pipeline.stages)
    for (const Chunk& chunk : stage.chunks)
      if (block >= chunk.first_block() && block < chunk.end_block()) return stage;
  ensure(false, "no stage contains block {}", block);
  return pipeline.stages.front();
}

Side side_of(const Stage& stage, int block) {
  return {static_cast<int>(stage.devices.size()), strategy_of(stage, block)};
}

// Returns the rows of a device's activation that contain its tokens inside `boxes`. Boxes are [samples,
// positions, features].
std::vector<Span> rows_of(const ActivationShare& share, const std::vector<Box>& boxes) {
  std::int64_t length = 0;
  for (const Span& span : share.positions) length += span.size();
  const auto local = [&](std::int64_t position) {
    std::int64_t num_rows_before = 0;
    for (const Span& span : share.positions) {
      if (position >= span.begin && position < span.end) return num_rows_before + position - span.begin;
      num_rows_before += span.size();
    }
    ensure(false, "position {} is not on this device", position);
    return num_rows_before;
  };
  std::vector<Span> rows;
  for (const Box& box : boxes)
    for (std::int64_t sample = box[0].begin; sample < box[0].end; ++sample) {
      const std::int64_t begin =
          (sample - share.samples.begin) * length + local(box[1].begin) - share.tokens.begin;
      rows.push_back({begin, begin + box[1].size()});
    }
  std::sort(rows.begin(), rows.end(), [](const Span& a, const Span& b) { return a.begin < b.begin; });
  std::vector<Span> joined;
  for (const Span& span : rows)
    if (!joined.empty() && joined.back().end == span.begin)
      joined.back().end = span.end;
    else
      joined.push_back(span);
  return joined;
}

std::int64_t num_rows(const MessagePart& part) {
  std::int64_t sum = 0;
  for (const Span& rows : part.rows) sum += rows.size();
  return sum;
}

// For each range of rows of `part`, calls copy(view of `activation`, view of `message`) with the views of
// this range.
template <typename Copy>
void for_each_piece(const at::Tensor& activation, const MessagePart& part, const at::Tensor& message,
                    Copy copy) {
  std::int64_t num_copied = 0;
  for (const Span& rows : part.rows) {
    copy(activation.narrow(0, rows.begin, rows.size()).narrow(1, part.columns.begin, part.columns.size()),
         message.narrow(0, num_copied, rows.size()));
    num_copied += rows.size();
  }
}

void pack(const at::Tensor& activation, const MessagePart& part, const at::Tensor& message) {
  for_each_piece(activation, part, message, [](const at::Tensor& from, at::Tensor to) { to.copy_(from); });
}
void unpack(const at::Tensor& message, const MessagePart& part, const at::Tensor& activation) {
  for_each_piece(activation, part, message, [](at::Tensor to, const at::Tensor& from) { to.copy_(from); });
}

// Copies between two parts that contain the same tokens, possibly in different ranges of rows.
void copy_part(const at::Tensor& from, const MessagePart& from_part, const at::Tensor& to,
               const MessagePart& to_part) {
  auto source = from_part.rows.begin();
  std::int64_t num_used = 0;  // rows of `source` that are already copied
  for (const Span& rows : to_part.rows)
    for (std::int64_t num_copied = 0; num_copied < rows.size();) {
      const std::int64_t count = std::min(rows.size() - num_copied, source->size() - num_used);
      to.narrow(0, rows.begin + num_copied, count)
          .narrow(1, to_part.columns.begin, to_part.columns.size())
          .copy_(from.narrow(0, source->begin + num_used, count)
                     .narrow(1, from_part.columns.begin, from_part.columns.size()));
      num_copied += count, num_used += count;
      if (num_used == source->size()) ++source, num_used = 0;
    }
}

enum class Tag { activation, gradient };
int tag_of(const Instruction& instruction) {
  return static_cast<int>(instruction.is_backward ? Tag::gradient : Tag::activation);
}

std::string description_of(const Instruction& instruction) {
  return fmt::format("{} of block {}, micro-batch {}", instruction.is_backward ? "gradients" : "activations",
                     instruction.block, instruction.microbatch);
}

}  // namespace

// The sender and the receiver of a crossing, from the point of view of one of its instructions.
struct Crossings::Sides {
  Side from, to;
  const Stage& other;  // the stage at the other end
  std::int64_t width;
};

Crossings::Crossings(const Plan& plan, const ModelSpec& model, const Program& program,
                     const std::vector<at::Tensor>& memory, at::ScalarType type, Comm* comm)
    : plan_(plan),
      model_(model),
      program_(program),
      pipeline_(plan.pipelines[static_cast<std::size_t>(program.location.pipeline)]),
      stage_(pipeline_.stages[static_cast<std::size_t>(program.location.stage)]),
      memory_(memory),
      type_(type),
      comm_(comm),
      arrivals_(program.instructions.size()) {
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& at = program.instructions[i];
    if (at.op == Op::send || at.op == Op::receive) parts_[i] = part_of(at);
  }
  find_arrivals();
}

// instruction.block is the block on this device. It is the receiver if `is_receiver`, otherwise the sender.
Crossings::Sides Crossings::sides_of(const Instruction& instruction, bool is_receiver) const {
  const int step = instruction.is_backward == is_receiver ? 1 : -1, other_block = instruction.block + step;
  const Stage& other = stage_containing(pipeline_, other_block);
  const Side own_side = side_of(stage_, instruction.block), other_side = side_of(other, other_block);
  return {is_receiver ? other_side : own_side, is_receiver ? own_side : other_side, other,
          output_width(model_, std::min(instruction.block, other_block))};
}

MessagePart Crossings::part_of(const Instruction& message) const {
  const bool is_receiver = message.op == Op::receive;
  const Sides sides = sides_of(message, is_receiver);
  const int count = sequences(message.microbatch);
  for (const Route& route : (is_receiver ? routes_in : routes_out)(
           sides.from, sides.to, program_.location.index, count, plan_.sequence_length, sides.width)) {
    if (sides.other.devices[static_cast<std::size_t>(route.peer)] != message.peer) continue;
    const ActivationShare share = share_of(is_receiver ? sides.to : sides.from, program_.location.index,
                                           count, plan_.sequence_length, true);
    return {rows_of(share, route.boxes), route.boxes.front()[2]};
  }
  ensure(false, "no route between devices {} and {}", program_.device, message.peer);
  return {};
}

// Finds the instructions that read received data. Inside a stage, they also read data that stays on the
// device.
void Crossings::find_arrivals() {
  std::map<int, std::size_t> receives;  // by buffer
  for (const auto& [index, part] : parts_)
    if (program_.instructions[index].op == Op::receive)
      receives[program_.uses(program_.instructions[index]).front().buffer] = index;
  for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
    const Instruction& at = program_.instructions[i];
    if (at.lane != Lane::compute && at.lane != Lane::tensor) continue;
    for (const Use& use : program_.uses(at)) {
      const Buffer& buffer = program_.buffers[static_cast<std::size_t>(use.buffer)];
      if (use.is_write) continue;
      Arrival arrival{.buffer = use.buffer, .kind = buffer.kind};
      if (buffer.kind == BufferKind::message) {
        arrival.to = parts_.at(receives.at(use.buffer));
      } else if (buffer.kind == BufferKind::outgoing) {
        Instruction to = at, from = at;
        from.block = buffer.block;
        to.op = Op::receive, from.op = Op::send, to.peer = from.peer = program_.device;
        to.is_backward = from.is_backward = buffer.block > at.block;
        const std::vector<Route> routes =
            routes_in(side_of(stage_, from.block), side_of(stage_, to.block), program_.location.index,
                      sequences(at.microbatch), plan_.sequence_length,
                      output_width(model_, std::min(from.block, to.block)));
        const bool is_local = std::any_of(routes.begin(), routes.end(), [&](const Route& route) {
          return route.peer == program_.location.index;
        });
        if (!is_local) continue;
        arrival.from = part_of(from), arrival.to = part_of(to);
      } else if (buffer.kind != BufferKind::joined) {
        continue;
      }
      arrivals_[i].push_back(std::move(arrival));
    }
  }
}

at::Tensor Crossings::outgoing(int buffer) const {
  const Buffer& at = program_.buffers[static_cast<std::size_t>(buffer)];
  const Side side = side_of(stage_, at.block);
  const std::int64_t tokens =
      share_of(side, program_.location.index, sequences(at.microbatch), plan_.sequence_length, true)
          .num_tokens();
  const at::Tensor flat = memory_[static_cast<std::size_t>(buffer)].view(type_);
  return tokens == 0 ? flat.view({0, 1}) : flat.view({tokens, -1});
}

std::unique_ptr<Pending> Crossings::begin_send(std::size_t index) const {
  const Instruction& at = program_.instructions[index];
  at::Tensor activation, message;
  for (const Use& use : program_.uses(at))
    if (use.is_write)
      message = memory_[static_cast<std::size_t>(use.buffer)].view(type_);
    else
      activation = outgoing(use.buffer);
  if (!message.defined()) return comm_->send(at.peer, activation, tag_of(at), description_of(at));
  const MessagePart& part = parts_.at(index);
  pack(activation, part, message.view({num_rows(part), part.columns.size()}));
  return comm_->send(at.peer, message, tag_of(at), description_of(at));
}

std::unique_ptr<Pending> Crossings::begin_receive(std::size_t index) const {
  const Instruction& at = program_.instructions[index];
  const int buffer = program_.uses(at).front().buffer;
  return comm_->receive(at.peer, memory_[static_cast<std::size_t>(buffer)].view(type_), tag_of(at),
                        description_of(at));
}

// Returns the slice of the features that this tensor-parallel rank of a block sends and receives.
Span Crossings::own_columns(int block, std::int64_t width) const {
  const int tp = strategy_of(stage_, block).tp;
  return split_evenly(width, tp)[static_cast<std::size_t>(program_.location.index % tp)];
}

std::unique_ptr<Pending> Crossings::begin_join(std::size_t index) const {
  const Instruction& at = program_.instructions[index];
  const int tp = strategy_of(stage_, at.block).tp;
  const std::int64_t width = sides_of(at, true).width, slice = (width + tp - 1) / tp;
  at::Tensor joined;
  for (const Use& use : program_.uses(at))
    if (use.is_write)
      joined = memory_[static_cast<std::size_t>(use.buffer)].view(type_).view({tp, -1, slice});
  const at::Tensor own_part = joined.select(0, program_.location.index % tp);
  const Span columns = own_columns(at.block, width);
  for (const Arrival& arrival : arrivals_[index]) {
    MessagePart to = arrival.to;
    to.columns = {to.columns.begin - columns.begin, to.columns.end - columns.begin};
    const at::Tensor from = arrival.kind == BufferKind::outgoing
                                ? outgoing(arrival.buffer)
                                : memory_[static_cast<std::size_t>(arrival.buffer)].view(type_).view(
                                      {num_rows(to), to.columns.size()});
    if (arrival.kind == BufferKind::outgoing)
      copy_part(from, arrival.from, own_part, to);
    else
      unpack(from, to, own_part);
  }
  return comm_->all_gather(program_.groups[static_cast<std::size_t>(at.group)], own_part, joined,
                           description_of(at));
}

void Crossings::unpack_arrivals(std::size_t index, at::Tensor to) const {
  for (const Arrival& arrival : arrivals_[index]) {
    const at::Tensor bytes = memory_[static_cast<std::size_t>(arrival.buffer)];
    if (arrival.kind == BufferKind::outgoing) {
      copy_part(outgoing(arrival.buffer), arrival.from, to, arrival.to);
    } else if (arrival.kind == BufferKind::message) {
      unpack(bytes.view(type_).view({num_rows(arrival.to), arrival.to.columns.size()}), arrival.to, to);
    } else {
      const int tp = strategy_of(stage_, program_.instructions[index].block).tp;
      const at::Tensor joined = bytes.view(type_).view({tp, to.size(0), -1});
      const std::vector<Span> columns = split_evenly(to.size(1), tp);
      for (int part = 0; part < tp; ++part) {
        const Span& own_part = columns[static_cast<std::size_t>(part)];
        to.narrow(1, own_part.begin, own_part.size())
            .copy_(joined.select(0, part).narrow(1, 0, own_part.size()));
      }
    }
  }
}

}  // namespace optimus
