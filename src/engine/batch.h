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

namespace optimus {

struct Microbatch {
  std::vector<std::int64_t> ids, targets;  // [sequences, length]; targets -1 where nothing counts
  std::vector<std::int32_t> positions;
  std::vector<std::int64_t> samples;       // global sample number of each sequence
  std::vector<AttentionSegment> segments;  // empty: every sequence as a whole
  at::Tensor inputs, labels;  // of models made of modules, [samples, …]; then all but `samples` is empty
};

// What one device reads of a step: its own sequences of each micro-batch. Counts are of these.
struct Batch {
  std::int64_t step = 0;  // from 0
  std::int64_t sequence_length = 0;
  std::vector<Microbatch> microbatches;
  std::int64_t num_tokens = 0;   // without padding
  std::int64_t num_counted = 0;  // targets that count
};

// The sequences of a micro-batch of `sequences` that a device of the plan works on.
Span own_sequences(const Plan& plan, int device, int sequences);

// Samples first_sample … of the data, dealt to the micro-batches of the plan's one pipeline in order; those of one device.
Batch read_batch(const Samples& samples, const Plan& plan, std::int64_t step, std::int64_t first_sample,
                 int device = 0);
// The same from given sequences of all devices, for evaluation and tests: micro-batch sizes as the plan says.
Batch make_batch(const std::vector<Sample>& samples, const Plan& plan, std::int64_t step,
                 std::int64_t first_sample, int device = 0);

}  // namespace optimus
