// Implements observation.h.
#include "adapt/observation.h"

#include <algorithm>
#include <cmath>

namespace optimus {
namespace {

constexpr double kBucketsPerOctave = 64, kMinValue = 1e-12;

int bucket_of(double value) {
  return static_cast<int>(std::floor(std::log2(std::max(value, kMinValue)) * kBucketsPerOctave));
}

bool is_larger(const RankValue& a, const RankValue& b) {
  return a.value > b.value || (a.value == b.value && a.rank < b.rank);
}

bool is_smaller(const RankValue& a, const RankValue& b) {
  return a.value < b.value || (a.value == b.value && a.rank < b.rank);
}

void merge_lengths(LengthSum& into, const LengthSum& other) {
  into.sequences += other.sequences, into.tokens += other.tokens, into.squares += other.squares;
  into.longest = std::max(into.longest, other.longest);
}

// The smaller of two limits. A limit of 0 means unknown.
Bytes smaller_limit(Bytes a, Bytes b) {
  if (a.value == 0 || b.value == 0) return std::max(a, b);
  return std::min(a, b);
}

}  // namespace

double RankStep::compute_seconds() const {
  double sum = 0;
  for (const WorkKind kind : {WorkKind::forward, WorkKind::recompute, WorkKind::backward})
    sum += kinds[static_cast<std::size_t>(kind)].seconds;
  return sum;
}

std::string text(Measure measure) {
  constexpr std::array<const char*, kMeasures> kNames = {
      "compute", "optimizer", "host", "waiting",  "data_wait", "work", "memory",
      "clock",   "idle",      "next", "previous", "tensor",    "data"};
  return kNames[static_cast<std::size_t>(measure)];
}

void Spread::add(double value, int rank) {
  Spread spread;
  spread.count = 1, spread.sum = value, spread.smallest = {value, rank};
  spread.largest = {{value, rank}}, spread.buckets = {{bucket_of(value), 1}};
  merge(spread);
}

void Spread::merge(const Spread& other) {
  if (other.count == 0) return;
  if (count == 0 || is_smaller(other.smallest, smallest)) smallest = other.smallest;
  count += other.count, sum += other.sum;
  std::vector<RankValue> merged;
  std::merge(largest.begin(), largest.end(), other.largest.begin(), other.largest.end(),
             std::back_inserter(merged), is_larger);
  merged.resize(std::min(merged.size(), kLargest));
  largest = std::move(merged);
  for (const auto& [bucket, bucket_count] : other.buckets) buckets[bucket] += bucket_count;
}

double Spread::median() const {
  if (count == 0) return 0;
  // If `largest` contains all ranks, the median is exact.
  if (count <= static_cast<std::int64_t>(largest.size()))
    return largest[static_cast<std::size_t>(count / 2)].value;
  std::int64_t remaining = (count + 1) / 2;
  for (const auto& [bucket, bucket_count] : buckets)
    if ((remaining -= bucket_count) <= 0) {
      const double middle = std::exp2((bucket + 0.5) / kBucketsPerOctave);
      return std::clamp(middle, smallest.value, largest.front().value);
    }
  return largest.front().value;
}

namespace {

void merge_block_times(BlockTimes& rates, const BlockTimes& other_rates) {
  for (std::size_t role = 0; role < kBlockRoles; ++role)
    rates[role].seconds += other_rates[role].seconds, rates[role].predicted += other_rates[role].predicted;
}

}  // namespace

void Observation::add(const RankStep& rank) {
  seconds = std::max(seconds, rank.seconds);
  ++num_ranks;
  merge_lengths(lengths, rank.lengths);
  merge_block_times(rates, rank.rates);
  memory_limit = smaller_limit(memory_limit, rank.memory_limit);
  GroupStep& group = groups[rank.group];
  const auto add_measure = [&](Measure measure, double value) {
    group.spreads[static_cast<std::size_t>(measure)].add(value, rank.rank);
  };
  double waiting = 0;
  for (const WorkTime& kind : rank.kinds) waiting += kind.waiting;
  if (rank.compute_seconds() > 0)
    add_measure(Measure::compute, rank.compute_seconds() / std::max(rank.relative_work, 1e-9));
  add_measure(Measure::optimizer, rank.kinds[static_cast<std::size_t>(WorkKind::optimizer)].seconds);
  add_measure(Measure::host, rank.kinds[static_cast<std::size_t>(WorkKind::load_batch)].seconds);
  add_measure(Measure::waiting, waiting);
  add_measure(Measure::data_wait, rank.data_wait);
  add_measure(Measure::work, rank.relative_work);
  add_measure(Measure::memory, static_cast<double>(rank.memory.value));
  if (rank.clock > 0) add_measure(Measure::clock, rank.clock), add_measure(Measure::idle, rank.idle);
  for (std::size_t c = 0; c < kChannels; ++c)
    if (rank.links[c].bytes > 0)
      add_measure(measure_of(static_cast<Channel>(c)), rank.links[c].seconds / rank.links[c].bytes);
}

void Observation::merge(const Observation& other) {
  step = std::max(step, other.step), seconds = std::max(seconds, other.seconds);
  num_ranks += other.num_ranks;
  merge_lengths(lengths, other.lengths);
  merge_block_times(rates, other.rates);
  memory_limit = smaller_limit(memory_limit, other.memory_limit);
  for (const auto& [number, group] : other.groups)
    for (std::size_t m = 0; m < kMeasures; ++m) groups[number].spreads[m].merge(group.spreads[m]);
}

}  // namespace optimus
