// The token ids of one step, in host memory, divided into micro-batches as the plan specifies. Shorter
// sequences are padded to the plan's sequence length. Padding has no loss and attends to nothing.
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
  std::vector<Span> context;               // this device's positions per sequence; empty if it has all
  std::vector<std::int64_t> ids, targets;  // [sequences, positions here]; a target of -1 has no loss
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> samples;  // [sequence]: global sample index
  // Begin and end are positions in the whole sequence. Empty if each sequence is one segment.
  std::vector<AttentionSegment> segments;
  // Used by module models only, [samples, …]. All other members except `samples` are then empty.
  at::Tensor inputs, labels;
};

// The part of a step's batch that one device processes. It contains the device's sequences of each
// micro-batch of its pipeline. If blocks of its stage split micro-batches in several ways, `microbatches`
// contains all micro-batches once for each way, in the order of splits_of(). The counts and squares are for
// the last block on the device.
struct Batch {
  std::int64_t step = 0;  // counted from 0
  std::int64_t sequence_length = 0;
  std::vector<Microbatch> microbatches;
  std::int64_t num_tokens = 0;   // tokens on this device, without padding
  std::int64_t num_targets = 0;  // targets with a loss on this device
  // Number of targets with a loss in each micro-batch, over all devices. Used by asynchronous schedules only,
  // in which each micro-batch performs an update with its mean loss.
  std::vector<std::int64_t> target_counts;
  // `squares` is the sum of the squared segment lengths of the device's sequences, divided by the number of
  // context parts. The work of attention is proportional to this sum. `expected_squares` is the sum for the
  // same number of sequences if each of them had the average of the step.
  double squares = 0, expected_squares = 0;
};

std::int64_t num_sequences(const Batch& batch);

// Returns the different ways in which blocks of a stage split micro-batches over its devices, in the order of
// the first block that uses them.
std::vector<Side> splits_of(const Stage& stage);
// Returns the index of a block's split in splits_of(stage).
int split_of(const Stage& stage, int block);

// Returns the number of sequences of a step in the pipelines with a lower index than `pipeline`.
std::int64_t num_sequences_before(const Plan& plan, int pipeline);

// Reads plan.batch samples, starting with `first_sample`, assigns them to the micro-batches of the plan's
// pipelines, and returns the part of the batch that `device` processes.
Batch read_batch(const Samples& samples, const Plan& plan, std::int64_t step, std::int64_t first_sample,
                 int device = 0, SampleOrder sample_order = SampleOrder::by_cost);
// Like read_batch(), but for given samples, which are the samples of all devices. Used for evaluation and
// tests.
Batch make_batch(const std::vector<Sample>& samples, const Plan& plan, std::int64_t step,
                 std::int64_t first_sample, int device = 0, SampleOrder sample_order = SampleOrder::by_cost);

}  // namespace optimus
