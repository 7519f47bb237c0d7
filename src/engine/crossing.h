// Transfers of activations between blocks that are on different devices or split differently. Determines the
// contents of each message, packs it before it is sent, and unpacks it to where the block expects its input
// (or the gradient of its output).
//
//   sender      outgoing [tokens, width] -> message (some rows and columns of it) -> …
//   receiver    … -> message -> the block's tensor; if each tensor-parallel rank receives a slice,
//               first into joined [parts, tokens, slice], which they gather
//
// A message contains its tokens in the order of samples and positions, which is the order of rows on every
// device. The program (schedule/compile.cpp) specifies which messages exist. Called by one thread.
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
  // `memory[buffer]` is the memory, as bytes, of each buffer of kind outgoing, message or joined. All
  // arguments must outlive this object. `comm` may be null if the program has no communication.
  Crossings(const Plan& plan, const ModelSpec& model, const Program& program,
            const std::vector<at::Tensor>& memory, at::ScalarType type, Comm* comm);

  // Returns the tensor, [tokens, width], of a buffer of kind outgoing. A block writes its output or input
  // gradient for blocks on other devices into this tensor.
  at::Tensor outgoing(int buffer) const;

  // Starts the send or receive instruction at `index` of the program.
  std::unique_ptr<Pending> begin_send(std::size_t index) const;
  std::unique_ptr<Pending> begin_receive(std::size_t index) const;
  // Starts the all-gather over tensor-parallel ranks that completes a receive.
  std::unique_ptr<Pending> begin_join(std::size_t index) const;
  // has_arrivals() returns whether the instruction at `index` reads data from other blocks, which most
  // instructions do not. unpack_arrivals() copies this data into `to`, the tensor that the instruction reads.
  bool has_arrivals(std::size_t index) const { return !arrivals_[index].empty(); }
  void unpack_arrivals(std::size_t index, at::Tensor to) const;

 private:
  // One source of an instruction's input: a message, data that stays on the device, or data gathered from
  // tensor-parallel ranks.
  struct Arrival {
    int buffer = -1;
    BufferKind kind = BufferKind::message;
    MessagePart from{}, to{};  // `from` is used only for data that stays on the device
  };
  struct Sides;
  Sides sides_of(const Instruction& instruction, bool is_receiver) const;
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
  std::map<std::size_t, MessagePart> parts_;    // by instruction, for sends and receives
  std::vector<std::vector<Arrival>> arrivals_;  // [instruction]
};

}  // namespace optimus
