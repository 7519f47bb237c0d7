// Implements stages.h. For a given limit on the longest stage, a shortest-path search finds the smallest sum
// of stage times. Only limits that can still improve the result are tried.
#include "search/stages.h"

#include <algorithm>

namespace optimus {
namespace {

struct Distribution {
  double sum = kInfeasible;
  std::vector<int> layers;
};

// The distribution with the smallest sum if no stage takes longer than `longest`.
Distribution min_sum(const std::vector<std::vector<double>>& times, int layers, double longest) {
  const std::size_t stages = times.size(), width = static_cast<std::size_t>(layers) + 1;
  std::vector<double> best_sums(width, kInfeasible), next_sums(width);
  std::vector<std::vector<int>> choice(stages, std::vector<int>(width, 0));
  best_sums[0] = 0;
  for (std::size_t s = 0; s < stages; ++s) {
    std::fill(next_sums.begin(), next_sums.end(), kInfeasible);
    const std::size_t maximum = times[s].size();
    for (std::size_t num_layers_before = 0; num_layers_before < width; ++num_layers_before) {
      if (best_sums[num_layers_before] >= kInfeasible) continue;
      for (std::size_t n = 1; n < maximum && num_layers_before + n < width; ++n) {
        const double time = times[s][n];
        if (time >= kInfeasible) continue;  // with a large embedding or head, even few layers may not fit
        if (time > longest) break;
        if (best_sums[num_layers_before] + time < next_sums[num_layers_before + n])
          next_sums[num_layers_before + n] = best_sums[num_layers_before] + time,
                                        choice[s][num_layers_before + n] = static_cast<int>(n);
      }
    }
    best_sums.swap(next_sums);
  }
  Distribution distribution;
  distribution.sum = best_sums[width - 1];
  if (distribution.sum >= kInfeasible) return distribution;
  distribution.layers.resize(stages);
  for (std::size_t s = stages, remaining = width - 1; s-- > 0;) {
    distribution.layers[s] = choice[s][remaining];
    remaining -= static_cast<std::size_t>(distribution.layers[s]);
  }
  return distribution;
}

}  // namespace

double pipeline_seconds(const std::vector<std::vector<double>>& times, const std::vector<int>& layers,
                        double microbatches) {
  double sum = 0, longest = 0;
  for (std::size_t s = 0; s < times.size(); ++s) {
    const double time = times[s][static_cast<std::size_t>(layers[s])];
    sum += time, longest = std::max(longest, time);
  }
  return sum + (microbatches - 1) * longest;
}

std::vector<int> distribute_layers(const std::vector<std::vector<double>>& times, int layers,
                                   double microbatches) {
  std::vector<double> lengths;
  for (const std::vector<double>& stage : times)
    for (const double time : stage)
      if (time < kInfeasible) lengths.push_back(time);
  std::sort(lengths.begin(), lengths.end());
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  const Distribution unconstrained = min_sum(times, layers, kInfeasible);
  if (unconstrained.layers.empty()) return {};
  // The smallest possible time of the longest stage, by bisection.
  auto low = lengths.begin(), high = lengths.end() - 1;
  while (low < high) {
    const auto middle = low + (high - low) / 2;
    if (min_sum(times, layers, *middle).layers.empty())
      low = middle + 1;
    else
      high = middle;
  }
  std::vector<int> best_lengths;
  double min_seconds = kInfeasible;
  for (auto length = low; length != lengths.end(); ++length) {
    if (unconstrained.sum + (microbatches - 1) * *length >= min_seconds) break;
    const Distribution distribution = min_sum(times, layers, *length);
    if (distribution.layers.empty()) continue;
    if (const double seconds = pipeline_seconds(times, distribution.layers, microbatches);
        seconds < min_seconds)
      min_seconds = seconds, best_lengths = distribution.layers;
  }
  return best_lengths;
}

}  // namespace optimus
