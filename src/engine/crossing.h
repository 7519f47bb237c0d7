// Activations on their way between blocks that are on other devices or split differently: what a message carries, packing it
// before it is sent and putting it where the block expects its input (or the gradient of its output).
//
//   sender      leaving [tokens, width] -> message (some rows and columns of it) -> …
//   receiver    … -> message -> the block's tensor; where tensor parts receive a slice of the features each, first into
//               joined [parts, tokens, slice], which they gather
//
// A message holds its tokens in the order of samples and positions, which is the order of rows on every device. Which
// messages there are stands in the program (schedule/compile.cpp). One thread calls.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <vector>

#include "comm/comm.h"
#include "plan/plan.h"
#include "schedule/program.h"

namespace optimus {

// Rows and columns of a device's [tokens, width] activation.
struct MessagePart {
  std::vector<Span> rows;  // ascending
  Span columns;
  bool operator==(const MessagePart&) const = default;
};

class Crossings {
 public:
  // memory: [buffer], bytes, of the kinds leaving, message and joined. All must outlive this.
  Crossings(const Plan& plan, const ModelSpec& model, const Program& program,
            const std::vector<at::Tensor>& memory, at::ScalarType type, Comm* comm);

  // What a block writes into for others to come: [tokens, width].
  at::Tensor leaving(int buffer) const;

  std::unique_ptr<Pending> begin_send(std::size_t index) const;
  std::unique_ptr<Pending> begin_receive(std::size_t index) const;
  // The collective of tensor parts that serves a receive.
  std::unique_ptr<Pending> begin_join(std::size_t index) const;
  // What arrived for an instruction, into the tensor that it reads; nothing for most.
  bool has_arrivals(std::size_t index) const { return !arrivals_[index].empty(); }
  void arrive(std::size_t index, at::Tensor to) const;

 private:
  // Something that arrives: a message, what stays on the device, or what parts have joined.
  struct Arrival {
    int buffer = -1;
    BufferKind kind = BufferKind::message;
    MessagePart from{}, to{};  // from: of what stays
  };
  struct Sides;
  Sides sides_of(const Instruction& at, bool is_to) const;
  MessagePart part_of(const Instruction& message) const;
  void find_arrivals();
  Span own_columns(int block, std::int64_t width) const;
  int sequences(int microbatch) const { return pipeline_.microbatches[static_cast<std::size_t>(microbatch)]; }

  const Plan& plan_;
  const ModelSpec& model_;
  const Program& program_;
  const Pipeline& pipeline_;
  const Stage& stage_;
  const std::vector<at::Tensor>& memory_;
  const at::ScalarType type_;
  Comm* comm_;
  std::map<std::size_t, MessagePart> parts_;    // of sends and receives
  std::vector<std::vector<Arrival>> arrivals_;  // [instruction]
};

}  // namespace optimus
