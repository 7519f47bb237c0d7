// The token ids of one step, micro-batch by micro-batch, as the plan cuts them: plain host memory. Shorter sequences are
// padded to the plan's length; padding counts nothing and attends to nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/box.h"
#include "data/samples.h"
#include "kernels/attention.h"
#include "plan/plan.h"
#include "schedule/deal.h"
#include "schedule/share.h"

namespace optimus {

struct Microbatch {
  std::vector<Span>
      context;  // positions of each sequence that are the device's; none: all (context parallelism)
  std::vector<std::int64_t> ids, targets;  // [sequences, own positions]; targets -1 where nothing counts
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> samples;       // global sample number of each sequence
  std::vector<AttentionSegment> segments;  // by positions in the sequence; empty: every sequence as a whole
  at::Tensor inputs, labels;  // of models made of modules, [samples, …]; then all but `samples` is empty
};

// What one device reads of a step: its own sequences of each micro-batch of its pipeline. Where its blocks split micro-batches in
// several ways, all micro-batches in one way, then all in the next. Counts are of what its last block works on.
struct Batch {
  std::int64_t step = 0;  // from 0
  std::int64_t sequence_length = 0;
  std::vector<Microbatch> microbatches;
  std::int64_t num_tokens = 0;   // without padding
  std::int64_t num_counted = 0;  // targets that count
  // Asynchronous schedules: the same of each micro-batch, over all devices, since each is the mean loss of an update.
  std::vector<std::int64_t> counted;
  // Of all lengths that attention sees in the device's sequences, their squares added up, its part of them; and what as many sequences of
  // the whole step have.
  double squares = 0, usual_squares = 0;
};

std::int64_t num_sequences(const Batch& batch);

// The ways in which the blocks of a stage split micro-batches over its devices, in the order of blocks.
std::vector<Side> splits_of(const Stage& stage);
// The number of a block's among them.
int split_of(const Stage& stage, int block);

// Sequences of a step that pipelines before this one take.
std::int64_t num_sequences_before(const Plan& plan, int pipeline);

// Samples first_sample … of the data, dealt to the micro-batches of the plan's pipelines; those of one device.
Batch read_batch(const Samples& samples, const Plan& plan, std::int64_t step, std::int64_t first_sample,
                 int device = 0, Dealing dealing = Dealing::by_cost);
// The same from given sequences of all devices, for evaluation and tests: micro-batch sizes as the plan says.
Batch make_batch(const std::vector<Sample>& samples, const Plan& plan, std::int64_t step,
                 std::int64_t first_sample, int device = 0, Dealing dealing = Dealing::by_cost);

}  // namespace optimus
