// The token ids of one step, divided into micro-batches as the plan specifies, in host memory. Shorter
// sequences are padded to the plan's sequence length; padding has no loss and attends to nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "base/box.h"
#include "data/samples.h"
#include "kernels/attention.h"
#include "plan/plan.h"
#include "schedule/sample_assignment.h"
#include "schedule/share.h"

namespace optimus {

struct Microbatch {
  std::vector<Span> context;  // context parallelism: this device's positions of each sequence; empty: all
  std::vector<std::int64_t> ids, targets;  // [sequences, own positions]; a target of -1 has no loss
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> samples;  // global sample number of each sequence
  // by positions in the sequence; empty: each sequence is one segment
  std::vector<AttentionSegment> segments;
  // module models: [samples, …]; all other members except `samples` are then empty
  at::Tensor inputs, labels;
};

// The part of a step's batch that one device reads: its own sequences of each micro-batch of its pipeline. If
// the blocks of its stage split micro-batches in several ways, all micro-batches in the first way come first,
// then all in the next. The counts are those of the last block on the device.
struct Batch {
  std::int64_t step = 0;  // from 0
  std::int64_t sequence_length = 0;
  std::vector<Microbatch> microbatches;
  std::int64_t num_tokens = 0;   // without padding
  std::int64_t num_targets = 0;  // targets with a loss
  // Asynchronous schedules: num_targets of each micro-batch, over all devices. Each of these updates uses the
  // mean loss of its micro-batch.
  std::vector<std::int64_t> counted;
  // squares: sum of the squared segment lengths that attention sees in the device's sequences (the device's
  // share). expected_squares: the value for the same number of average sequences of the whole step.
  double squares = 0, expected_squares = 0;
};

std::int64_t num_sequences(const Batch& batch);

// The ways in which the blocks of a stage split micro-batches over its devices, in the order of blocks.
std::vector<Side> splits_of(const Stage& stage);
// Index of a block's split in splits_of(stage).
int split_of(const Stage& stage, int block);

// Number of sequences of a step that belong to the pipelines before this one.
std::int64_t num_sequences_before(const Plan& plan, int pipeline);

// Reads samples first_sample … of the data, assigns them to the micro-batches of the plan's pipelines, and
// returns those of one device.
Batch read_batch(const Samples& samples, const Plan& plan, std::int64_t step, std::int64_t first_sample,
                 int device = 0, SampleOrder dealing = SampleOrder::by_cost);
// The same from given sequences of all devices, for evaluation and tests. The plan specifies the micro-batch
// sizes.
Batch make_batch(const std::vector<Sample>& samples, const Plan& plan, std::int64_t step,
                 std::int64_t first_sample, int device = 0, SampleOrder dealing = SampleOrder::by_cost);

}  // namespace optimus
