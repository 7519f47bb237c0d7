// Implements detect.h: computes ratios and decides which of them are lasting. Lasting ratios are attributed
// in detect_causes.cpp.
#include "adapt/detect.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace optimus {
namespace {

constexpr std::size_t kMaxTracks = 512;
constexpr double kTrackedRatio = 1.04;  // ratios of at least this value are tracked
constexpr int kForgotten = 30;          // steps without a high ratio after which a track is dropped

constexpr std::array<Measure, 6> kWatched = {Measure::compute,  Measure::clock,  Measure::next,
                                             Measure::previous, Measure::tensor, Measure::data};

bool is_channel(Measure measure) { return measure >= Measure::next; }

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double last_median(const std::deque<double>& values, int window) {
  const auto number = std::min<std::ptrdiff_t>(window, std::ssize(values));
  return median_of({values.end() - number, values.end()});
}

// The smallest value of the last `window` steps, ignoring the `num_others` smallest ones.
double least_of_last(const std::deque<double>& values, int window, int num_others) {
  if (std::ssize(values) < window) return 0;
  std::vector<double> last(values.end() - window, values.end());
  std::nth_element(last.begin(), last.begin() + num_others, last.end());
  return last[static_cast<std::size_t>(num_others)];
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
  // Clocks are compared with other ranks' clocks of the same step, not with earlier ones.
  for (int group = 0; group < topology_.num_groups(); ++group) baselines_[{group, Measure::clock}].value = 1;
  stage_shares_.resize(static_cast<std::size_t>(topology_.num_groups()));
  memory_.resize(stage_shares_.size());
}

std::vector<Finding> Detector::observe(const Observation& observation) {
  step_ = observation.step, step_seconds_ = observation.seconds;
  if (num_observations_++ == 0) first_step_ = step_;
  const Common common{common_factor(observation, Measure::compute),
                      common_factor(observation, Measure::clock)};
  follow_one(common_, common.compute, false);
  follow(observation, common);
  learn(observation, common);
  std::vector<Finding> found;
  find_slow_ranks(found);
  find_slow_links(found);
  find_heavy_stage(observation, found);
  find_data_wait(observation, found);
  find_uneven_lengths(observation, found);
  find_memory_growth(observation, found);
  std::stable_sort(found.begin(), found.end(),
                   [](const Finding& a, const Finding& b) { return a.factor > b.factor; });
  return found;
}

// The ratio to the baseline that the faster half of the ranks reaches; of two or three ranks, the ratio of
// the fastest rank. 1 for a single rank, which cannot be compared with others.
double Detector::common_factor(const Observation& observation, Measure measure) const {
  if (observation.num_ranks < 2) return 1;
  std::vector<std::pair<double, std::int64_t>> ratios;  // by rank
  std::int64_t ranks = 0;
  for (const auto& [group, seen] : observation.groups) {
    const auto base = baselines_.find({group, measure});
    const Spread& spread = seen.of(measure);
    if (base == baselines_.end() || base->second.value == 0 || spread.count == 0) continue;
    const double value = observation.num_ranks < 4 ? spread.smallest.value : spread.median();
    ratios.emplace_back(value / base->second.value, spread.count);
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
  const auto number = std::min<std::ptrdiff_t>(window, std::ssize(track.ratios));
  std::vector<double> last(track.ratios.end() - number, track.ratios.end());
  std::sort(last.begin(), last.end());
  const auto at = [&](double part) {
    return std::log(std::max(1e-9, last[static_cast<std::size_t>(part * static_cast<double>(number - 1))]));
  };
  return at(0.75) - at(0.25) <= options_.steady_part * at(0.5);
}

// The first step of the latest sequence of steps whose ratios are closer to the present level than to the
// usual one. Single exceptions are ignored.
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

void Detector::follow_one(Track& track, double ratio, bool is_link) const {
  track.ratios.push_back(ratio), track.steps.push_back(step_);
  if (std::ssize(track.ratios) > options_.long_window) track.ratios.pop_front(), track.steps.pop_front();
  const double least = is_link ? options_.link_short_factor : options_.short_factor,
               least_long = is_link ? options_.link_long_factor : options_.long_factor;
  // A condition has ended when the last steps are nearly at the usual level.
  const double end = 1 + (least - 1) / 3;
  const bool is_high = ratio >= end;
  track.quiet = is_high ? 0 : track.quiet + 1;
  track.high_seconds = track.quiet >= 2 ? 0 : track.high_seconds + step_seconds_;
  const bool has_strong = least_of_last(track.ratios, options_.strong_window, 0) >= options_.strong_factor;
  const bool has_short = least_of_last(track.ratios, options_.short_window, 1) >= least;
  const bool has_long = std::ssize(track.ratios) >= options_.long_window &&
                        last_median(track.ratios, options_.long_window) >= least_long;
  const int window = has_strong ? options_.strong_window : options_.short_window;
  const bool begins = (has_strong || has_short || has_long) && track.high_seconds >= options_.least_seconds &&
                      (track.high_seconds >= options_.unsteady_seconds || is_steady(track, window));
  if (track.quiet >= 2) track.high_since = step_ + 1;
  if (begins && !track.is_lasting) track.begin_step = first_step_of(track);
  track.is_lasting = begins || (track.is_lasting && last_median(track.ratios, options_.short_window) >= end);
}

std::map<Detector::Key, double> Detector::ratios_of(const Observation& observation,
                                                    const Common& common) const {
  std::map<Key, double> ratios;
  for (const auto& [group, seen] : observation.groups)
    for (const Measure measure : kWatched) {
      const Spread& spread = seen.of(measure);
      const auto base = baselines_.find({group, measure});
      if (spread.count == 0 || base == baselines_.end() || base->second.value == 0) continue;
      if (measure == Measure::clock && observation.num_ranks < 2) continue;
      const double typical = base->second.value * common.of(measure);
      ratios[{measure, -1 - group}] = spread.median() / typical;
      for (const RankValue& rank_value : spread.largest)
        ratios[{measure, rank_value.rank}] = rank_value.value / typical;
    }
  return ratios;
}

void Detector::follow(const Observation& observation, const Common& common) {
  const std::map<Key, double> ratios = ratios_of(observation, common);
  for (const auto& [key, ratio] : ratios) {
    const bool is_known = tracks_.contains(key);
    if (!is_known && (ratio < kTrackedRatio || tracks_.size() >= kMaxTracks)) continue;
    Track& track = tracks_[key];
    if (!is_known) {  // earlier ratios were below kTrackedRatio
      track.ratios.assign(static_cast<std::size_t>(options_.long_window - 1), 1.0);
      track.steps.assign(track.ratios.size(), step_), track.high_since = step_;
    }
    follow_one(track, ratio, is_channel(key.first));
  }
  for (auto it = tracks_.begin(); it != tracks_.end();) {
    Track& track = it->second;
    if (!ratios.contains(it->first)) {
      // For a large group, an observation lists only the ranks with the largest values. A tracked rank that
      // is not listed is assumed to have the group's median, because different ranks may be listed in every
      // step.
      const auto [measure, rank] = it->first;
      const auto median = ratios.find({measure, rank >= 0 ? -1 - topology_.group_of(rank) : rank});
      follow_one(track, median == ratios.end() ? 1.0 : median->second, is_channel(measure));
    }
    it = track.quiet > kForgotten && !track.is_lasting ? tracks_.erase(it) : std::next(it);
  }
}

// A baseline is the median over the warm-up, then a slow moving average of undisturbed steps, because a
// change over hours does not count as a condition.
void Detector::learn(const Observation& observation, const Common& common) {
  constexpr double kRate = 1.0 / 256;
  for (const auto& [group, seen] : observation.groups)
    for (const Measure measure : kWatched) {
      const Spread& spread = seen.of(measure);
      if (spread.count == 0 || measure == Measure::clock) continue;
      Baseline& base = baselines_[{group, measure}];
      if (base.value == 0) {
        base.warm_up_medians.push_back(spread.median());
        if (std::ssize(base.warm_up_medians) >= options_.warm_up)
          base.value = median_of(std::exchange(base.warm_up_medians, {}));
        continue;
      }
      const double ratio = spread.median() / (base.value * common.of(measure));
      if (ratio < kTrackedRatio && ratio > 1 / kTrackedRatio) base.value *= std::pow(ratio, kRate);
    }
}

const Detector::Track* Detector::track_of(Measure measure, int rank) const {
  for (const Key& key : {Key{measure, rank}, Key{measure, -1 - topology_.group_of(rank)}})
    if (const auto found = tracks_.find(key); found != tracks_.end() && found->second.is_lasting)
      return &found->second;
  return nullptr;
}

// Uses the rank's own track or that of its group, because an observation may not list all ranks of a group.
bool Detector::is_slow(Measure measure, int rank) const { return track_of(measure, rank) != nullptr; }

Finding Detector::finding_of(Cause cause, std::vector<int> locations,
                             const std::vector<const Track*>& tracks) const {
  Finding finding{cause, std::move(locations), 1, 0, step_};
  std::vector<double> medians, logs;
  for (const Track* track : tracks) {
    medians.push_back(last_median(track->ratios, options_.short_window));
    finding.begin_step = std::min(finding.begin_step, track->begin_step);
    const auto number = std::min<std::ptrdiff_t>(options_.short_window, std::ssize(track->ratios));
    for (auto it = track->ratios.end() - number; it != track->ratios.end(); ++it)
      logs.push_back(std::abs(std::log(std::max(1e-9, *it / medians.back()))));
  }
  finding.factor = median_of(medians);
  // 1.4826 converts the median absolute deviation to a standard deviation; 1.25 / sqrt(n) converts that to
  // the standard deviation of the median of n = short_window values.
  finding.spread = 1.4826 * median_of(logs) * 1.25 / std::sqrt(static_cast<double>(options_.short_window));
  return finding;
}

}  // namespace optimus
