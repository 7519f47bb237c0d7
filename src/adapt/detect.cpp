// Implements detect.h: computes ratios and decides which of them are lasting. detect_causes.cpp attributes
// lasting ratios to causes.
#include "adapt/detect.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxTracks = 512;
constexpr double kTrackedRatio = 1.04;  // ratios of at least this value are tracked
constexpr int kMaxQuietSteps = 30;      // steps without a high ratio after which a track is dropped

constexpr std::array<Measure, 6> kWatchedMeasures = {Measure::compute,  Measure::clock,  Measure::next,
                                                     Measure::previous, Measure::tensor, Measure::data};

bool is_channel(Measure measure) { return measure >= Measure::next; }

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double last_median(const std::deque<double>& values, int window) {
  const auto count = std::min<std::ptrdiff_t>(window, std::ssize(values));
  return median_of({values.end() - count, values.end()});
}

// The smallest value of the last `window` steps, without the `num_ignored` smallest ones. Returns 0 if there
// are fewer steps.
double smallest_of_last(const std::deque<double>& values, int window, int num_ignored) {
  if (std::ssize(values) < window) return 0;
  std::vector<double> last_values(values.end() - window, values.end());
  std::nth_element(last_values.begin(), last_values.begin() + num_ignored, last_values.end());
  return last_values[static_cast<std::size_t>(num_ignored)];
}

}  // namespace

DetectorOptions early_options() {
  constexpr double kNever = 1e9;
  DetectorOptions options;
  options.short_window = options.strong_window = kEarlySteps, options.short_factor = options.strong_factor;
  options.long_factor = options.link_short_factor = options.link_long_factor = kNever;
  return options;
}

Detector::Detector(Topology topology, DetectorOptions options,
                   const std::map<std::pair<int, Measure>, double>& baseline_seconds)
    : topology_(std::move(topology)), options_(options) {
  for (const auto& [key, value] : baseline_seconds) baselines_[key].value = value;
  // Clocks are compared with the clocks of other ranks in the same step, not with earlier steps.
  for (int group = 0; group < topology_.num_groups(); ++group) baselines_[{group, Measure::clock}].value = 1;
  stage_shares_.resize(static_cast<std::size_t>(topology_.num_groups()));
  memory_values_.resize(stage_shares_.size());
}

std::vector<Finding> Detector::observe(const Observation& observation) {
  step_ = observation.step, step_seconds_ = observation.seconds;
  if (num_observations_++ == 0) first_step_ = step_;
  const CommonFactors common{common_factor(observation, Measure::compute),
                             common_factor(observation, Measure::clock)};
  update_track(common_track_, common.compute, false);
  update_tracks(observation, common);
  learn(observation, common);
  std::vector<Finding> findings;
  find_slow_ranks(findings);
  find_slow_links(findings);
  find_heavy_stage(observation, findings);
  find_data_wait(observation, findings);
  find_uneven_lengths(observation, findings);
  find_memory_growth(observation, findings);
  std::stable_sort(findings.begin(), findings.end(),
                   [](const Finding& a, const Finding& b) { return a.factor > b.factor; });
  return findings;
}

// The ratio to the baseline that the faster half of the ranks reaches. With two or three ranks, this is the
// ratio of the fastest rank. With one rank, which cannot be compared with others, it is 1.
double Detector::common_factor(const Observation& observation, Measure measure) const {
  if (observation.num_ranks < 2) return 1;
  std::vector<std::pair<double, std::int64_t>> ratios;  // by rank
  std::int64_t ranks = 0;
  for (const auto& [group, group_step] : observation.groups) {
    const auto baseline = baselines_.find({group, measure});
    const Spread& spread = group_step.of(measure);
    if (baseline == baselines_.end() || baseline->second.value == 0 || spread.count == 0) continue;
    const double value = observation.num_ranks < 4 ? spread.smallest.value : spread.median();
    ratios.emplace_back(value / baseline->second.value, spread.count);
    ranks += spread.count;
  }
  if (2 * ranks < observation.num_ranks) return 1;  // too few ranks have baselines
  std::sort(ratios.begin(), ratios.end());
  if (observation.num_ranks < 4) return ratios.front().first;
  std::int64_t remaining = (ranks + 1) / 2;
  for (const auto& [ratio, count] : ratios)
    if ((remaining -= count) <= 0) return ratio;
  return ratios.back().first;
}

bool Detector::is_steady(const Track& track, int window) const {
  const auto count = std::min<std::ptrdiff_t>(window, std::ssize(track.ratios));
  std::vector<double> last_ratios(track.ratios.end() - count, track.ratios.end());
  std::sort(last_ratios.begin(), last_ratios.end());
  const auto log_quantile = [&](double quantile) {
    return std::log(
        std::max(1e-9, last_ratios[static_cast<std::size_t>(quantile * static_cast<double>(count - 1))]));
  };
  return log_quantile(0.75) - log_quantile(0.25) <= options_.steady_part * log_quantile(0.5);
}

// The first step of the latest sequence of steps whose ratios are closer to the current level than to the
// usual level. Single exceptions are ignored.
std::int64_t Detector::first_step_of(const Track& track) const {
  const double halfway = std::sqrt(last_median(track.ratios, options_.strong_window));
  std::int64_t first = track.steps.back();
  int num_low = 0;
  for (std::size_t i = track.ratios.size(); i-- > 0 && num_low < 2;)
    if (track.ratios[i] >= halfway)
      first = track.steps[i], num_low = 0;
    else
      ++num_low;
  return first == track.steps.front() ? std::min(first, track.high_since) : first;
}

void Detector::update_track(Track& track, double ratio, bool is_link) const {
  track.ratios.push_back(ratio), track.steps.push_back(step_);
  if (std::ssize(track.ratios) > options_.long_window) track.ratios.pop_front(), track.steps.pop_front();
  const double short_factor = is_link ? options_.link_short_factor : options_.short_factor,
               long_factor = is_link ? options_.link_long_factor : options_.long_factor;
  // A condition has ended when the last steps are almost as fast as usual.
  const double end_ratio = 1 + (short_factor - 1) / 3;
  const bool is_high = ratio >= end_ratio;
  track.num_quiet = is_high ? 0 : track.num_quiet + 1;
  track.high_seconds = track.num_quiet >= 2 ? 0 : track.high_seconds + step_seconds_;
  const bool has_strong = smallest_of_last(track.ratios, options_.strong_window, 0) >= options_.strong_factor;
  const bool has_short = smallest_of_last(track.ratios, options_.short_window, 1) >= short_factor;
  const bool has_long = std::ssize(track.ratios) >= options_.long_window &&
                        last_median(track.ratios, options_.long_window) >= long_factor;
  const int window = has_strong ? options_.strong_window : options_.short_window;
  const bool is_slow_now = (has_strong || has_short || has_long) &&
                           track.high_seconds >= options_.min_seconds &&
                           (track.high_seconds >= options_.unsteady_seconds || is_steady(track, window));
  if (track.num_quiet >= 2) track.high_since = step_ + 1;
  if (is_slow_now && !track.is_lasting) track.begin_step = first_step_of(track);
  track.is_lasting =
      is_slow_now || (track.is_lasting && last_median(track.ratios, options_.short_window) >= end_ratio);
}

std::map<Detector::Key, double> Detector::ratios_of(const Observation& observation,
                                                    const CommonFactors& common) const {
  std::map<Key, double> ratios;
  for (const auto& [group, group_step] : observation.groups)
    for (const Measure measure : kWatchedMeasures) {
      const Spread& spread = group_step.of(measure);
      const auto baseline = baselines_.find({group, measure});
      if (spread.count == 0 || baseline == baselines_.end() || baseline->second.value == 0) continue;
      if (measure == Measure::clock && observation.num_ranks < 2) continue;
      const double typical = baseline->second.value * common.of(measure);
      ratios[{measure, -1 - group}] = spread.median() / typical;
      for (const RankValue& rank_value : spread.largest)
        ratios[{measure, rank_value.rank}] = rank_value.value / typical;
    }
  return ratios;
}

void Detector::update_tracks(const Observation& observation, const CommonFactors& common) {
  const std::map<Key, double> ratios = ratios_of(observation, common);
  for (const auto& [key, ratio] : ratios) {
    const bool is_known = tracks_.contains(key);
    if (!is_known && (ratio < kTrackedRatio || tracks_.size() >= kMaxTracks)) continue;
    Track& track = tracks_[key];
    if (!is_known) {  // earlier ratios were below kTrackedRatio
      track.ratios.assign(static_cast<std::size_t>(options_.long_window - 1), 1.0);
      track.steps.assign(track.ratios.size(), step_), track.high_since = step_;
    }
    update_track(track, ratio, is_channel(key.first));
  }
  for (auto it = tracks_.begin(); it != tracks_.end();) {
    Track& track = it->second;
    if (!ratios.contains(it->first)) {
      // For a large group, an observation lists only the ranks with the largest values, so different ranks
      // may be listed in each step. A tracked rank that is not listed is assumed to have the group's median.
      const auto [measure, rank] = it->first;
      const auto median = ratios.find({measure, rank >= 0 ? -1 - topology_.group_of(rank) : rank});
      update_track(track, median == ratios.end() ? 1.0 : median->second, is_channel(measure));
    }
    it = track.num_quiet > kMaxQuietSteps && !track.is_lasting ? tracks_.erase(it) : std::next(it);
  }
}

// A baseline is initially the median of the warm-up steps. It then follows undisturbed steps as a slow moving
// average, because gradual changes over hours are not conditions.
void Detector::learn(const Observation& observation, const CommonFactors& common) {
  constexpr double kRate = 1.0 / 256;
  for (const auto& [group, group_step] : observation.groups)
    for (const Measure measure : kWatchedMeasures) {
      const Spread& spread = group_step.of(measure);
      if (spread.count == 0 || measure == Measure::clock) continue;
      Baseline& baseline = baselines_[{group, measure}];
      if (baseline.value == 0) {
        baseline.warm_up_medians.push_back(spread.median());
        if (std::ssize(baseline.warm_up_medians) >= options_.warm_up)
          baseline.value = median_of(std::exchange(baseline.warm_up_medians, {}));
        continue;
      }
      const double ratio = spread.median() / (baseline.value * common.of(measure));
      if (ratio < kTrackedRatio && ratio > 1 / kTrackedRatio) baseline.value *= std::pow(ratio, kRate);
    }
}

const Detector::Track* Detector::track_of(Measure measure, int rank) const {
  for (const Key& key : {Key{measure, rank}, Key{measure, -1 - topology_.group_of(rank)}})
    if (const auto it = tracks_.find(key); it != tracks_.end() && it->second.is_lasting) return &it->second;
  return nullptr;
}

// Uses the track of the rank or of its group, because an observation may not list all ranks of a group.
bool Detector::is_slow(Measure measure, int rank) const { return track_of(measure, rank) != nullptr; }

Finding Detector::finding_of(Cause cause, std::vector<int> locations,
                             const std::vector<const Track*>& tracks) const {
  Finding finding{cause, std::move(locations), 1, 0, step_};
  std::vector<double> medians, logs;
  for (const Track* track : tracks) {
    medians.push_back(last_median(track->ratios, options_.short_window));
    finding.begin_step = std::min(finding.begin_step, track->begin_step);
    const auto count = std::min<std::ptrdiff_t>(options_.short_window, std::ssize(track->ratios));
    for (auto it = track->ratios.end() - count; it != track->ratios.end(); ++it)
      logs.push_back(std::abs(std::log(std::max(1e-9, *it / medians.back()))));
  }
  finding.factor = median_of(medians);
  // 1.4826 converts the median absolute deviation to a standard deviation; 1.25 / sqrt(n) converts that to
  // the standard deviation of the median of n = short_window values.
  finding.spread = 1.4826 * median_of(logs) * 1.25 / std::sqrt(static_cast<double>(options_.short_window));
  return finding;
}

}  // namespace optimus
