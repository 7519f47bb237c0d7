// See batch.h.
#include "engine/batch.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.h"

namespace optimus {
namespace {

// Appends this device's positions of a sample, padded to the plan's sequence length, and the segments of the
// sample.
void append(Microbatch& microbatch, const Sample& sample, std::int64_t length, std::int64_t sample_index) {
  const std::int64_t row = std::ssize(microbatch.samples), num_tokens = std::ssize(sample.inputs);
  ensure(num_tokens >= 1 && num_tokens <= length,
         "expected a sample of 1 to {} tokens (the sequence length), got {}", length, num_tokens);
  microbatch.samples.push_back(sample_index);
  const std::vector<Span> whole_sequence = {{0, length}};
  for (const Span& span : microbatch.context.empty() ? whole_sequence : microbatch.context)
    for (std::int64_t i = span.begin; i < span.end; ++i) {
      const auto at = static_cast<std::size_t>(i);
      microbatch.ids.push_back(i < num_tokens ? sample.inputs[at] : 0);
      microbatch.targets.push_back(i < num_tokens ? sample.targets[at] : kNoTarget);
      microbatch.positions.push_back(i < num_tokens ? sample.positions[at] : 0);
    }
  // If documents are separate, positions restart at each document. Otherwise the sample is one segment.
  std::int64_t begin = 0;
  for (std::int64_t i = 1; i <= num_tokens; ++i)
    if (i == num_tokens || sample.positions[static_cast<std::size_t>(i)] == 0) {
      microbatch.segments.push_back({row, begin, i});
      begin = i;
    }
}

void count(const Microbatch& microbatch, const Sample& sample, Batch& batch) {
  const auto num_tokens_used = std::ssize(sample.inputs);
  const std::vector<Span> whole_sequence = {{0, num_tokens_used}};
  for (const Span& span : microbatch.context.empty() ? whole_sequence : microbatch.context)
    for (std::int64_t i = span.begin; i < std::min(span.end, num_tokens_used); ++i) {
      ++batch.num_tokens;
      batch.num_targets += sample.targets[static_cast<std::size_t>(i)] != kNoTarget;
    }
}

double square(std::int64_t length) { return static_cast<double>(length) * static_cast<double>(length); }

// Returns the sum of the sample's squared segment lengths. If documents are separate, positions restart at
// each document.
double squares_of(const Sample& sample) {
  double result = 0;
  std::int64_t begin = 0;
  for (std::int64_t i = 1; i <= std::ssize(sample.inputs); ++i)
    if (i == std::ssize(sample.inputs) || sample.positions[static_cast<std::size_t>(i)] == 0)
      result += square(i - begin), begin = i;
  return result;
}

std::int64_t num_targets(const Sample& sample) {
  return std::count_if(sample.targets.begin(), sample.targets.end(),
                       [](TokenId target) { return target != kNoTarget; });
}

// Clears the segments if each sequence is one whole segment.
void drop_trivial_segments(Microbatch& microbatch, std::int64_t length) {
  if (microbatch.segments.size() != microbatch.samples.size()) return;
  for (const AttentionSegment& segment : microbatch.segments)
    if (segment.begin != 0 || segment.end != length) return;
  microbatch.segments.clear();
}

bool has_same_split(const LayerStrategy& a, const LayerStrategy& b) { return a.tp == b.tp && a.cp == b.cp; }

}  // namespace

std::int64_t num_sequences(const Batch& batch) {
  std::int64_t count = 0;
  for (const Microbatch& microbatch : batch.microbatches) count += std::ssize(microbatch.samples);
  return count;
}

std::vector<Side> splits_of(const Stage& stage) {
  std::vector<Side> result;
  for (const Chunk& chunk : stage.chunks)
    for (const BlockRun& run : chunk.runs)
      if (std::none_of(result.begin(), result.end(),
                       [&](const Side& side) { return has_same_split(side.strategy, run.strategy); }))
        result.push_back({static_cast<int>(stage.devices.size()), run.strategy});
  return result;
}

int split_of(const Stage& stage, int block) {
  const LayerStrategy& strategy = strategy_of(stage, block);
  const std::vector<Side> splits = splits_of(stage);
  return static_cast<int>(
      std::find_if(splits.begin(), splits.end(),
                   [&](const Side& side) { return has_same_split(side.strategy, strategy); }) -
      splits.begin());
}

namespace {

// The samples of a step in the order in which micro-batches use them.
struct SampleAssignment {
  std::vector<double> squares;       // [sample]: sum of the sample's squared segment lengths
  std::vector<std::int64_t> sample;  // [position in the order of use]: index of the sample
};

SampleAssignment assignment(const Plan& plan, std::vector<double> squares, SampleOrder sample_order) {
  ensure(std::ssize(squares) == plan.batch, "expected {} samples (the batch size), got {}", plan.batch,
         squares.size());
  SampleAssignment result{std::move(squares), {}};
  if (sample_order == SampleOrder::by_cost) {
    result.sample = assign_samples_by_cost(plan, result.squares);
  } else {
    result.sample.resize(result.squares.size());
    std::iota(result.sample.begin(), result.sample.end(), 0);
  }
  return result;
}

// `read(i)` returns sample i of the step.
template <typename Read>
Batch build_batch(const Plan& plan, std::int64_t step, std::int64_t first_sample, int device,
                  const SampleAssignment& assignment, Read read) {
  const double average = std::accumulate(assignment.squares.begin(), assignment.squares.end(), 0.0) /
                         static_cast<double>(assignment.squares.size());
  Batch batch;
  batch.step = step, batch.sequence_length = plan.sequence_length;
  const PlanLocation location = location_of(plan, device);
  const Pipeline& pipeline = plan.pipelines[static_cast<std::size_t>(location.pipeline)];
  const Stage& stage = pipeline.stages[static_cast<std::size_t>(location.stage)];
  const int counted_split = split_of(stage, stage.chunks.back().end_block() - 1);
  if (is_asynchronous(plan.schedule)) {
    std::int64_t next = num_sequences_before(plan, location.pipeline);
    for (const int size : pipeline.microbatches) {
      std::int64_t& sum = batch.target_counts.emplace_back();
      for (const std::int64_t end = next + size; next < end; ++next) sum += num_targets(read(next));
    }
  }
  int split_index = 0;
  for (const Side& split : splits_of(stage)) {
    std::int64_t num_sequences_before_pipeline = num_sequences_before(plan, location.pipeline);
    for (const int size : pipeline.microbatches) {
      Microbatch& microbatch = batch.microbatches.emplace_back();
      const ActivationShare own_share = share_of(split, location.index, size, plan.sequence_length, false);
      if (split.strategy.cp > 1) microbatch.context = own_share.positions;
      // fraction of each sequence that is on this device
      const double fraction = split.strategy.cp > 1 ? 1.0 / split.strategy.cp : 1;
      for (std::int64_t position = num_sequences_before_pipeline + own_share.samples.begin;
           position < num_sequences_before_pipeline + own_share.samples.end; ++position) {
        const std::int64_t i = assignment.sample[static_cast<std::size_t>(position)];
        const Sample& sample = read(i);
        append(microbatch, sample, plan.sequence_length, first_sample + i);
        if (split_index != counted_split) continue;
        count(microbatch, sample, batch);
        batch.squares += fraction * assignment.squares[static_cast<std::size_t>(i)],
            batch.expected_squares += fraction * average;
      }
      drop_trivial_segments(microbatch, plan.sequence_length);
      num_sequences_before_pipeline += size;
    }
    ++split_index;
  }
  return batch;
}

}  // namespace

std::int64_t num_sequences_before(const Plan& plan, int pipeline) {
  std::int64_t sum = 0;
  for (int p = 0; p < pipeline; ++p)
    for (const int size : plan.pipelines[static_cast<std::size_t>(p)].microbatches) sum += size;
  return sum;
}

Batch make_batch(const std::vector<Sample>& samples, const Plan& plan, std::int64_t step,
                 std::int64_t first_sample, int device, SampleOrder sample_order) {
  std::vector<double> squares;
  for (const Sample& sample : samples) squares.push_back(squares_of(sample));
  return build_batch(
      plan, step, first_sample, device, assignment(plan, std::move(squares), sample_order),
      [&](std::int64_t i) -> const Sample& { return samples.at(static_cast<std::size_t>(i)); });
}

namespace {

// Returns the sum of squared segment lengths of each sample of the step. If a sample is longer than the
// plan's sequence length, only its first tokens count.
std::vector<double> squares_of(const Samples& samples, const Plan& plan, std::int64_t first_sample) {
  std::vector<double> result(static_cast<std::size_t>(plan.batch), square(plan.sequence_length));
  if (samples.have_equal_lengths()) return result;
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = 0;
    std::int64_t remaining = plan.sequence_length;
    for (const std::int64_t length : samples.lengths(first_sample + static_cast<std::int64_t>(i))) {
      result[i] += square(std::min(remaining, length));
      remaining -= std::min(remaining, length);
    }
  }
  return result;
}

// Truncates a sample to at most `max_tokens` tokens. Needed in training phases with shorter sequences.
Sample truncate_sample(Sample sample, std::int64_t max_tokens) {
  if (std::ssize(sample.inputs) <= max_tokens) return sample;
  const auto length = static_cast<std::size_t>(max_tokens);
  sample.inputs.resize(length), sample.targets.resize(length);
  sample.positions.resize(length), sample.documents.resize(length);
  sample.num_targets = num_targets(sample);
  return sample;
}

}  // namespace

Batch read_batch(const Samples& samples, const Plan& plan, std::int64_t step, std::int64_t first_sample,
                 int device, SampleOrder sample_order) {
  // Samples are cached, because blocks that split micro-batches differently read mostly the same samples.
  std::map<std::int64_t, Sample> sample_cache;
  return build_batch(plan, step, first_sample, device,
                     assignment(plan, squares_of(samples, plan, first_sample), sample_order),
                     [&](std::int64_t i) -> const Sample& {
                       const auto [at, is_new] = sample_cache.try_emplace(i);
                       if (is_new)
                         at->second = truncate_sample(samples.read(first_sample + i), plan.sequence_length);
                       return at->second;
                     });
}

}  // namespace optimus
