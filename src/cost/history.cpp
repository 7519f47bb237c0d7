// See history.h.
#include "cost/history.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

namespace optimus {
namespace {

// The observation of one run. `age_weight` halves for every kHalfLife seconds of age.
struct RunObservation {
  double log = 0, variance = 0, age_weight = 1;
};

struct Sums {
  double weight = 0, weighted_log = 0;
  double mean() const { return weighted_log / weight; }
};

Sums sums_of(const std::vector<RunObservation>& observations, double run_variance) {
  Sums sums;
  for (const RunObservation& run_observation : observations) {
    const double weight = run_observation.age_weight / (run_variance + run_observation.variance);
    sums.weight += weight, sums.weighted_log += weight * run_observation.log;
  }
  return sums;
}

// The 97.5 % quantile of Student's t-distribution, by a Cornish-Fisher expansion around the normal quantile.
// The result is 10 % too small for two degrees of freedom.
double quantile(double freedom) { return 1.96 + 2.372 / freedom + 2.823 / (freedom * freedom); }

// The variance between runs in excess of the variation between steps. The prior has the weight of kRunWeight
// runs. `num_others` is the age-weighted number of runs minus one.
double run_variance_of(const std::vector<RunObservation>& observations, double num_others) {
  double variance = kRunSpread * kRunSpread;
  constexpr int kRounds =
      3;  // the estimate is iterated because the weights of the mean depend on the variance
  for (int round = 0; round < kRounds; ++round) {
    const double mean = sums_of(observations, variance).mean();
    double excess = 0;
    for (const RunObservation& run_observation : observations)
      excess += run_observation.age_weight *
                ((run_observation.log - mean) * (run_observation.log - mean) - run_observation.variance);
    variance = (kRunWeight * kRunSpread * kRunSpread + std::max(0.0, excess)) / (kRunWeight + num_others);
  }
  return variance;
}

Residual residual_factor_of(const std::vector<RunObservation>& observations) {
  double count = 0;
  for (const RunObservation& run_observation : observations) count += run_observation.age_weight;
  const double num_others = std::max(0.0, count - 1), variance = run_variance_of(observations, num_others);
  const Sums sums = sums_of(observations, variance);
  const double precision = 1 / (kPriorSpread * kPriorSpread) + sums.weight;
  const double middle = sums.weighted_log / precision;
  const double width = quantile(kRunWeight + num_others) / std::sqrt(precision);
  Residual result;
  result.factor = std::exp(middle), result.low = std::exp(middle - width),
  result.high = std::exp(middle + width);
  result.run_spread = std::sqrt(variance), result.num_runs = static_cast<int>(observations.size());
  return result;
}

}  // namespace

std::string text(ResidualKind kind) {
  switch (kind) {
    case ResidualKind::embedding:
      return "embedding";
    case ResidualKind::layers:
      return "layers";
    case ResidualKind::head:
      return "head";
    case ResidualKind::optimizer:
      return "optimizer";
    case ResidualKind::host:
      return "host";
    case ResidualKind::small_messages:
      return "small messages";
    case ResidualKind::large_messages:
      return "large messages";
  }
  return "";
}

void add_run(History& history, PastRun run) {
  const auto place =
      std::upper_bound(history.runs.begin(), history.runs.end(), run.end_time,
                       [](std::int64_t end_time, const PastRun& one) { return end_time < one.end_time; });
  history.runs.insert(place, std::move(run));
  if (history.runs.size() > kMaxPastRuns) history.runs.erase(history.runs.begin());
}

std::vector<Residual> residuals(const History& history) {
  std::map<std::pair<ResidualKind, std::string>, std::vector<std::pair<std::int64_t, const Evidence*>>>
      evidence_of;
  for (const PastRun& run : history.runs)
    for (const Evidence& evidence : run.evidence)
      evidence_of[{evidence.kind, evidence.device_type}].emplace_back(run.end_time, &evidence);
  std::vector<Residual> result;
  for (auto& [key, entries] : evidence_of) {
    // Sorts the entries, so that sums do not depend on the order of the runs.
    std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      const auto order = [](const auto& one) {
        return std::tuple(one.first, one.second->log_factor, one.second->uncertainty, one.second->steps);
      };
      return order(a) < order(b);
    });
    std::vector<RunObservation> observations;
    for (const auto& [end_time, evidence] : entries) {
      const double age = static_cast<double>(entries.back().first) - static_cast<double>(end_time);
      observations.push_back(
          {evidence->log_factor,
           evidence->uncertainty * evidence->uncertainty + kStepSpread * kStepSpread / evidence->steps,
           std::exp2(-age / kHalfLife)});
    }
    Residual& residual = result.emplace_back(residual_factor_of(observations));
    residual.kind = key.first, residual.device_type = key.second;
  }
  return result;
}

double factor_of(const std::vector<Residual>& residuals, ResidualKind kind, const std::string& device_type) {
  for (const Residual& residual : residuals)
    if (residual.kind == kind && residual.device_type == device_type) return residual.factor;
  return 1;
}

}  // namespace optimus
