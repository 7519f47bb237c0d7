// See repair.h.
#include "recovery/repair.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <numbers>

#include "base/error.h"

namespace optimus {
namespace {

double normal_above(double z) { return 0.5 * std::erfc(z / std::numbers::sqrt2); }

double log_deviation(const OutageKind& kind, double seconds) {
  return (std::log(seconds) - std::log(kind.median_seconds)) / kind.spread;
}

// The probability that an outage of this kind lasts longer than `seconds`.
double kind_survival(const OutageKind& kind, double seconds) {
  return seconds <= 0 ? 1 : normal_above(log_deviation(kind, seconds));
}

double kind_density(const OutageKind& kind, double seconds) {
  const double z = log_deviation(kind, seconds);
  return std::exp(-0.5 * z * z) / (seconds * kind.spread * std::sqrt(2 * std::numbers::pi));
}

// The mean of max(0, duration - seconds).
double kind_tail(const OutageKind& kind, double seconds) {
  const double mean = kind.median_seconds * std::exp(kind.spread * kind.spread / 2);
  if (seconds <= 0) return mean;
  const double z = log_deviation(kind, seconds);
  return mean * normal_above(z - kind.spread) - seconds * normal_above(z);
}

}  // namespace

const std::array<OutageKind, 3>& outage_kinds() {
  static constexpr std::array<OutageKind, 3> kinds = {{
      {"process", 3, 1, 1},  // restart of a worker process; a guess that the history of the run soon replaces
      {"spot machine", 930, 0.86, 1},  // fitted to 145 returns in 11.4 h of AWS p3 instances
      {"repair", 88'900, 2.33, 1},  // fitted to 308 outages of at least a minute, of 231 servers in 200 days
  }};
  return kinds;
}

RepairForecast::RepairForecast(const std::vector<Outage>& history, double now) {
  const auto& kinds = outage_kinds();
  std::array<double, 3> kind_weights{};
  for (std::size_t k = 0; k < kinds.size(); ++k) kind_weights[k] = kinds[k].weight;
  constexpr double kMinSeconds = 1e-3;  // seconds, the resolution of the clocks
  for (const Outage& outage : history) {
    const bool has_ended = outage.end_time >= outage.begin_time;
    const double duration = std::max(kMinSeconds, (has_ended ? outage.end_time : now) - outage.begin_time);
    // Posterior probability of each kind for this outage.
    std::array<double, 3> likelihood{};
    double likelihood_sum = 0;
    for (std::size_t k = 0; k < kinds.size(); ++k) {
      likelihood[k] = kind_weights[k] *
                      (has_ended ? kind_density(kinds[k], duration) : kind_survival(kinds[k], duration));
      likelihood_sum += likelihood[k];
    }
    if (!(likelihood_sum > 0))
      likelihood.back() = likelihood_sum = 1;  // longer than any kind explains: counts as a repair
    for (std::size_t k = 0; k < kinds.size(); ++k) kind_weights[k] += likelihood[k] / likelihood_sum;
  }
  double total = 0;
  for (const double weight : kind_weights) total += weight;
  for (std::size_t k = 0; k < kinds.size(); ++k) shares_[k] = kind_weights[k] / total;
}

double RepairForecast::survival(double seconds) const {
  double sum = 0;
  for (std::size_t k = 0; k < shares_.size(); ++k)
    sum += shares_[k] * kind_survival(outage_kinds()[k], seconds);
  return sum;
}

double RepairForecast::tail(double seconds) const {
  double sum = 0;
  for (std::size_t k = 0; k < shares_.size(); ++k) sum += shares_[k] * kind_tail(outage_kinds()[k], seconds);
  return sum;
}

double RepairForecast::survival_probability(double elapsed, double further) const {
  const double survival_so_far = survival(elapsed);
  return survival_so_far > 0 ? survival(elapsed + further) / survival_so_far : 1;
}

double RepairForecast::expected_excess_seconds(double elapsed, double further) const {
  const double survival_so_far = survival(elapsed);
  return survival_so_far > 0 ? std::max(0.0, tail(elapsed + further)) / survival_so_far : 0;
}

double RepairForecast::expected_remaining_seconds(double elapsed) const {
  return expected_excess_seconds(elapsed, 0);
}

WaitChoice wait_or_replan(const RepairForecast& forecast, double elapsed, const WaitCosts& costs) {
  const double remainder = forecast.expected_remaining_seconds(elapsed);
  const auto loss_of = [&](double wait) {
    const double absence_probability = forecast.survival_probability(elapsed, wait);
    const double expected_wait = remainder - forecast.expected_excess_seconds(elapsed, wait);
    const double expected_without = forecast.expected_excess_seconds(elapsed, wait + costs.replan_seconds);
    // Expected seconds of the replanning pause during which the node is still absent.
    const double expected_replan = forecast.expected_excess_seconds(elapsed, wait) - expected_without;
    return expected_wait + (1 - absence_probability) * costs.resume_seconds + expected_replan +
           (1 - costs.speed_without) * expected_without + absence_probability * costs.readmit_seconds;
  };
  WaitChoice choice;
  choice.loss_without_wait = choice.expected_loss = loss_of(0);
  constexpr double kMaxWait = 86400 * 7;
  for (double wait = 0.125; wait < kMaxWait; wait *= std::numbers::sqrt2)
    if (const double loss = loss_of(wait); loss < choice.expected_loss)
      choice.expected_loss = loss, choice.wait_seconds = wait;
  return choice;
}

double FailureRate::per_node_second() const {
  // A weak prior: 0.1 failures in 10 node hours. The first observed failure outweighs it.
  constexpr double kFailures = 0.1, kNodeSeconds = 36'000;
  return (kFailures + failures_) / (kNodeSeconds + node_seconds_);
}

std::vector<double> outage_durations(const AvailabilityTrace& trace, Matching matching) {
  std::vector<double> durations;
  std::map<int, double> lost_at;         // [node]: when it was lost
  std::deque<double> unreplaced_losses;  // times of losses that no new node has replaced yet
  for (const NodeEvent& event : trace.events) {
    if (!event.is_add) {
      lost_at[event.node] = event.seconds, unreplaced_losses.push_back(event.seconds);
      continue;
    }
    if (matching == Matching::by_name) {
      const auto it = lost_at.find(event.node);
      if (it == lost_at.end()) continue;
      durations.push_back(event.seconds - it->second);
      lost_at.erase(it);
    } else if (!unreplaced_losses.empty()) {
      durations.push_back(event.seconds - unreplaced_losses.front());
      unreplaced_losses.pop_front();
    }
  }
  return durations;
}

LogNormal fit_log_normal(const std::vector<double>& durations) {
  ensure(durations.size() > 1, "log-normal fit: expected at least two durations, got {}", durations.size());
  double sum = 0, squares = 0;
  for (const double duration : durations) {
    const double logarithm = std::log(std::max(1e-3, duration));
    sum += logarithm, squares += logarithm * logarithm;
  }
  const auto count = static_cast<double>(durations.size());
  const double mean = sum / count;
  return {std::exp(mean), std::sqrt(std::max(0.0, squares / count - mean * mean))};
}

}  // namespace optimus
