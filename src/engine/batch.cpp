// See batch.h.
#include "engine/batch.h"

#include "base/error.h"
#include "schedule/share.h"

namespace optimus {
namespace {

void append(Microbatch& microbatch, const Sample& sample, std::int64_t length, std::int64_t number,
            Batch& batch) {
  const std::int64_t row = std::ssize(microbatch.samples), used = std::ssize(sample.inputs);
  ensure(used >= 1 && used <= length, "a sample of {} tokens in sequences of {}", used, length);
  microbatch.samples.push_back(number);
  for (std::int64_t i = 0; i < length; ++i) {
    const auto at = static_cast<std::size_t>(i);
    microbatch.ids.push_back(i < used ? sample.inputs[at] : 0);
    microbatch.targets.push_back(i < used ? sample.targets[at] : kNoTarget);
    microbatch.positions.push_back(i < used ? sample.positions[at] : 0);
  }
  // Documents that must not see each other are where positions begin anew; otherwise the sample is one segment.
  std::int64_t begin = 0;
  for (std::int64_t i = 1; i <= used; ++i)
    if (i == used || sample.positions[static_cast<std::size_t>(i)] == 0) {
      microbatch.segments.push_back({row, begin, i});
      begin = i;
    }
  batch.num_tokens += used;
  batch.num_counted += sample.num_counted;
}

// When every sequence is one whole segment, none needs to be named.
void drop_trivial_segments(Microbatch& microbatch, std::int64_t length) {
  if (microbatch.segments.size() != microbatch.samples.size()) return;
  for (const AttentionSegment& segment : microbatch.segments)
    if (segment.begin != 0 || segment.end != length) return;
  microbatch.segments.clear();
}

}  // namespace

Span own_sequences(const Plan& plan, int device, int sequences) {
  const Seat seat = seat_of(plan, device);
  const Stage& stage =
      plan.pipelines[static_cast<std::size_t>(seat.pipeline)].stages[static_cast<std::size_t>(seat.stage)];
  const Side side{static_cast<int>(stage.devices.size()), strategy_of(stage, stage.chunks.front().first())};
  return share_of(side, seat.index, sequences, plan.sequence_length, false).samples;
}

namespace {

// read(i): sample number i of the step.
template <typename Read>
Batch deal_out(const Plan& plan, std::int64_t step, std::int64_t first_sample, int device, Read read) {
  Batch batch;
  batch.step = step, batch.sequence_length = plan.sequence_length;
  std::int64_t before = 0;
  for (const int size : plan.pipelines.front().microbatches) {
    Microbatch& microbatch = batch.microbatches.emplace_back();
    const Span own = own_sequences(plan, device, size);
    for (std::int64_t i = before + own.begin; i < before + own.end; ++i)
      append(microbatch, read(i), plan.sequence_length, first_sample + i, batch);
    drop_trivial_segments(microbatch, plan.sequence_length);
    before += size;
  }
  return batch;
}

}  // namespace

Batch make_batch(const std::vector<Sample>& samples, const Plan& plan, std::int64_t step,
                 std::int64_t first_sample, int device) {
  return deal_out(plan, step, first_sample, device,
                  [&](std::int64_t i) -> const Sample& { return samples.at(static_cast<std::size_t>(i)); });
}

Batch read_batch(const Samples& samples, const Plan& plan, std::int64_t step, std::int64_t first_sample,
                 int device) {
  return deal_out(plan, step, first_sample, device,
                  [&](std::int64_t i) { return samples.read(first_sample + i); });
}

}  // namespace optimus
