// A schedule as data: the order in which one stage of a pipeline processes its micro-batches.
//
//   text(one_f_one_b({.stage = 0, .num_stages = 2, .num_microbatches = 3})) == "F0 F1 B0 F2 B1 B2"
//
// F is a forward pass, B a backward pass. If the backward pass is split, B computes the gradient of the input
// and W the gradient of the weights. U is a weight update (asynchronous schedules). F3.1 is micro-batch 3 in
// chunk 1. Examples with four stages. Time runs to the right. A forward pass takes 1 unit of time, a backward
// pass 2 units:
//
//   GPipe          0 F0F1F2F3            B3B3B2B2B1B1B0B0
//                  1   F0F1F2F3        B3B3B2B2B1B1B0B0
//   1F1B           0 F0F1F2F3        B0B0  B1B1  B2B2  B3B3
//                  3       F0B0B0F1B1B1F2B2B2F3B3B3
//
// Orders are independent of devices, tensors and time. Read next: schedule/program.h (from orders to
// instructions).
#pragma once

#include <string>
#include <vector>

#include "plan/plan.h"

namespace optimus {

enum class Work { forward, backward, backward_input, backward_weight, update };

struct Slot {
  Work work = Work::forward;
  int microbatch = 0, chunk = 0;
  bool operator==(const Slot&) const = default;
};
using Order = std::vector<Slot>;

struct StagePosition {
  int stage = 0, num_stages = 1, num_microbatches = 1, num_chunks = 1;
};

// All forward passes, then all backward passes, starting with the last micro-batch. Saves the activations of
// num_microbatches micro-batches.
Order gpipe(const StagePosition& position);
// PipeDream-Flush: runs only as many forward passes in advance as are needed to keep the pipeline full. Saves
// the activations of min(num_stages - stage, num_microbatches) micro-batches.
Order one_f_one_b(const StagePosition& position);
// Has several chunks per stage. Each chunk processes num_stages micro-batches at a time. Divides the bubble
// by the number of chunks. Any number of micro-batches is allowed, because the last round may be incomplete.
Order interleaved(const StagePosition& position);
// Weight gradients are computed in times that would otherwise be bubbles (ZB-H1). Every stage needs as much
// memory as the first stage with 1F1B.
Order zero_bubble(const StagePosition& position);
// 1F1B without flush: the update of each micro-batch follows its backward pass. PipeDream stashes the weights
// of a forward pass for the matching backward pass. PipeMare uses the newest weights and corrects for the
// difference. The order is the same for both.
Order asynchronous(const StagePosition& position);

Order order_of(Schedule schedule, const StagePosition& position);

// The largest number of (micro-batch, chunk) pairs whose activations a stage saves at the same time,
// according to the schedule's formula.
int max_saved_microbatches(Schedule schedule, const StagePosition& position);

std::string text(const Order& order);

}  // namespace optimus
