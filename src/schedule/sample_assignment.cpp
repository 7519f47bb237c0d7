// See sample_assignment.h.
#include "schedule/sample_assignment.h"

#include <algorithm>
#include <numeric>
#include <queue>

#include "base/error.h"
#include "schedule/share.h"

namespace optimus {
namespace {

// The capacity and contents of a replica or a micro-batch.
struct Bin {
  std::int64_t capacity = 0, size = 0;  // number of samples that can still be added, and in total
  double cost = 0;
  std::vector<std::int64_t> samples{};
};

// Assigns samples in descending order of cost, each to the bin with the lowest cost relative to its size.
void fill_bins(std::vector<Bin>& bins, const std::vector<std::int64_t>& samples,
               const std::vector<double>& costs) {
  const auto has_lower_priority = [&](std::size_t a, std::size_t b) {
    const double x = bins[a].cost * static_cast<double>(bins[b].size),
                 y = bins[b].cost * static_cast<double>(bins[a].size);
    if (x != y) return x > y;
    // Among bins with equal relative cost, the least full bin comes first, so that samples with zero cost are
    // distributed too.
    const std::int64_t fuller_a = bins[a].capacity * bins[b].size, fuller_b = bins[b].capacity * bins[a].size;
    return fuller_a != fuller_b ? fuller_a < fuller_b : a > b;
  };
  std::priority_queue<std::size_t, std::vector<std::size_t>, decltype(has_lower_priority)> open_bins(
      has_lower_priority);
  for (std::size_t i = 0; i < bins.size(); ++i)
    if (bins[i].capacity > 0) open_bins.push(i);
  std::vector<std::int64_t> order = samples;
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return costs[static_cast<std::size_t>(a)] > costs[static_cast<std::size_t>(b)];
  });
  for (const std::int64_t sample : order) {
    const std::size_t at = open_bins.top();
    open_bins.pop();
    bins[at].samples.push_back(sample), --bins[at].capacity;
    bins[at].cost += costs[static_cast<std::size_t>(sample)];
    if (bins[at].capacity > 0) open_bins.push(at);
  }
}

// For each replica, its places in each micro-batch. A pipeline has as many replicas as the strategy of its
// first layers has data-parallel ranks.
std::vector<std::vector<Span>> replicas_of(const Plan& plan) {
  std::vector<std::vector<Span>> result;
  std::int64_t num_before = 0;
  for (const Pipeline& pipeline : plan.pipelines) {
    const Stage& stage = pipeline.stages.front();
    const Side side{static_cast<int>(stage.devices.size()), stage.chunks.front().runs.front().strategy};
    const int width = side.strategy.tp * side.strategy.cp, num_parts = side.num_devices / width;
    const std::size_t first = result.size();
    result.resize(first + static_cast<std::size_t>(num_parts));
    for (const int size : pipeline.microbatches) {
      for (int part = 0; part < num_parts; ++part) {
        const Span own_span = share_of(side, part * width, size, plan.sequence_length, false).samples;
        if (own_span.size() > 0)
          result[first + static_cast<std::size_t>(part)].push_back(
              {num_before + own_span.begin, num_before + own_span.end});
      }
      num_before += size;
    }
  }
  return result;
}

std::vector<Bin> bins_of(const std::vector<Span>& places) {
  std::vector<Bin> bins;
  for (const Span& span : places) bins.push_back({span.size(), span.size()});
  return bins;
}

}  // namespace

std::vector<std::int64_t> assign_samples_by_cost(const Plan& plan, const std::vector<double>& costs) {
  std::vector<std::int64_t> sample(costs.size());
  std::iota(sample.begin(), sample.end(), 0);
  const bool is_pipeline = plan.pipelines.front().stages.size() > 1;
  const std::vector<std::vector<Span>> replicas = replicas_of(plan);
  const bool have_equal_costs =
      std::all_of(costs.begin(), costs.end(), [&](double c) { return c == costs[0]; });
  if (have_equal_costs || is_asynchronous(plan.schedule) || (replicas.size() == 1 && !is_pipeline))
    return sample;

  std::vector<Bin> bins;
  std::int64_t num_places = 0;
  for (const std::vector<Span>& places : replicas) {
    Bin& bin = bins.emplace_back();
    for (const Span& span : places) bin.size += span.size();
    bin.capacity = bin.size, num_places += bin.size;
  }
  ensure(num_places == std::ssize(costs), "{} samples for {} places", costs.size(), num_places);
  fill_bins(bins, sample, costs);
  for (std::size_t r = 0; r < replicas.size(); ++r) {
    std::vector<Bin> microbatches = bins_of(replicas[r]);
    std::sort(bins[r].samples.begin(), bins[r].samples.end());
    fill_bins(microbatches, bins[r].samples, costs);
    for (std::size_t m = 0; m < microbatches.size(); ++m) {
      std::vector<std::int64_t>& microbatch_samples = microbatches[m].samples;
      std::sort(microbatch_samples.begin(), microbatch_samples.end());
      std::copy(microbatch_samples.begin(), microbatch_samples.end(), sample.begin() + replicas[r][m].begin);
    }
  }
  return sample;
}

}  // namespace optimus
