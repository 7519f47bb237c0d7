// See policy_features.h.
#include "adapt/policy_features.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "adapt/lifetime.h"

namespace optimus {
namespace {

constexpr double kHour = 3600, kLongest = 36'000;

double bounded(double value, double most) { return std::clamp(value, -most, most); }
double digits(double seconds) { return std::log10(1 + std::clamp(seconds, 0.0, 1e7)); }

double upper_tail(double z) { return 0.5 * std::erfc(z / std::numbers::sqrt2); }

// As expected_rest (adapt/lifetime.h), in closed form: decisions are many.
double quick_rest(Cause cause, double age) {
  const Lifetime lifetime = usual_lifetime(cause);
  if (lifetime.is_endless) return kLongest;
  const double z = std::log(std::max(age, 1e-9) / lifetime.median) / lifetime.spread;
  const double alive = upper_tail(z);
  if (alive < 1e-9) return kLongest;
  const double mean = lifetime.median * std::exp(lifetime.spread * lifetime.spread / 2);
  return std::clamp(mean * upper_tail(z - lifetime.spread) / alive - age, 1.0, kLongest);
}

// How long things will stay as they are, by conditions and by what came and went in the last hour.
double likely_rest(const Situation& situation) {
  double rest = kLongest;
  const double seen = std::clamp(situation.now, 60.0, kHour);
  const double changes = situation.losses_last_hour + situation.arrivals_last_hour;
  rest = std::min(rest, (seen + 600) / (changes + 0.1));
  for (const OngoingCondition& one : situation.conditions)
    rest = std::min(rest, quick_rest(one.cause, one.age));
  return std::max(rest, 1.0);
}

// Logarithms of a lasting step's seconds, of every option; unspeakable where it cannot run.
struct Guesses {
  std::vector<double> told, own, smooth, rough;
};

bool runs(const PlanOption& option) { return option.step_seconds > 0; }

// What is added where losses undo a part of the steps.
double undone_log(const PlanOption& option, const Situation& situation) {
  return -std::log1p(-undone_part(situation, option));
}

// Told before and now, less what predictions were off so far (as if one more had been right).
double own_guess(const PlanOption& option, const Situation& situation) {
  const double more = undone_log(option, situation);
  if (option.is_measured || option.response == Response::stay) return std::log(option.step_seconds) + more;
  const double told =
      std::log(option.remembered_seconds > 0 ? option.remembered_seconds : option.step_seconds);
  return told + more + situation.mean_miss * situation.num_missed / (situation.num_missed + 1.0);
}

// Plans of nearly as many devices should need nearly as much work in all: the mean over neighbours, and how much they differ.
void smooth_by_devices(const Situation& situation, Guesses& guesses) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < situation.options.size(); ++i)
    if (runs(situation.options[i]) && situation.options[i].devices > 0) order.push_back(i);
  const auto devices = [&](std::size_t place) { return situation.options[order[place]].devices; };
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return situation.options[a].devices < situation.options[b].devices;
  });
  constexpr std::ptrdiff_t kReach = 3;
  for (std::ptrdiff_t place = 0; place < std::ssize(order); ++place) {
    const auto at = static_cast<std::size_t>(place);
    double sum = 0, squares = 0, count = 0;
    for (std::ptrdiff_t other = std::max<std::ptrdiff_t>(0, place - kReach);
         other <= std::min(std::ssize(order) - 1, place + kReach); ++other) {
      const auto near = static_cast<std::size_t>(other);
      const bool are_alike = (situation.options[order[near]].undone_steps > 0) ==
                             (situation.options[order[at]].undone_steps > 0);
      if (near != at && (!are_alike || devices(near) == devices(at) || devices(near) > 1.3 * devices(at) ||
                         devices(at) > 1.3 * devices(near)))
        continue;
      const double work = guesses.own[order[near]] + std::log(devices(near));
      sum += work, squares += work * work, ++count;
    }
    const double mean = sum / count;
    guesses.smooth[order[at]] = mean - std::log(devices(at));
    guesses.rough[order[at]] = std::sqrt(std::max(0.0, squares / count - mean * mean));
  }
}

Guesses guesses_of(const Situation& situation) {
  const std::size_t num = situation.options.size();
  Guesses guesses{std::vector<double>(num, 0), {}, {}, std::vector<double>(num, 0)};
  for (std::size_t i = 0; i < num; ++i)
    if (runs(situation.options[i]))
      guesses.told[i] =
          std::log(situation.options[i].step_seconds) + undone_log(situation.options[i], situation);
  guesses.own = guesses.told;
  for (std::size_t i = 0; i < num; ++i)
    if (runs(situation.options[i])) guesses.own[i] = own_guess(situation.options[i], situation);
  guesses.smooth = guesses.own;
  smooth_by_devices(situation, guesses);
  return guesses;
}

// Staying (where it can), and the quickest by each of the three guesses in turn.
std::vector<std::size_t> worth_a_look(const Situation& situation, const Guesses& guesses) {
  std::vector<std::size_t> chosen;
  if (runs(situation.options.front())) chosen.push_back(0);
  std::vector<std::size_t> able;
  for (std::size_t i = 1; i < situation.options.size(); ++i)
    if (runs(situation.options[i])) able.push_back(i);
  if (able.size() + chosen.size() <= kMostLooked) {
    chosen.insert(chosen.end(), able.begin(), able.end());
    return chosen;
  }
  const auto add_best = [&](const std::vector<double>& guess, std::size_t most) {
    std::vector<std::size_t> order = able;
    const std::size_t kept = std::min(most, order.size());
    std::partial_sort(
        order.begin(), order.begin() + static_cast<std::ptrdiff_t>(kept), order.end(),
        [&](std::size_t a, std::size_t b) { return guess[a] != guess[b] ? guess[a] < guess[b] : a < b; });
    for (std::size_t i = 0; i < kept && chosen.size() < kMostLooked; ++i)
      if (std::find(chosen.begin(), chosen.end(), order[i]) == chosen.end()) chosen.push_back(order[i]);
  };
  for (const std::size_t i : able)
    if (situation.options[i].response == Response::resume) chosen.push_back(i);
  add_best(guesses.own, 5), add_best(guesses.smooth, 4), add_best(guesses.told, 4);
  return chosen;
}

struct Common {
  const Situation& situation;
  const Guesses& guesses;
  double now, rest, best_own,
      best_told;  // now: logarithm of the step's seconds that others are compared with
  bool is_broken;
  int present;
};

Common common_of(const Situation& situation, const Guesses& guesses) {
  Common common{situation, guesses, 0, likely_rest(situation), 1e9, 1e9, !runs(situation.options.front()), 0};
  int most = 1;
  for (std::size_t i = 0; i < situation.options.size(); ++i) {
    if (!runs(situation.options[i])) continue;
    common.best_own = std::min(common.best_own, guesses.own[i]);
    common.best_told = std::min(common.best_told, guesses.told[i]);
    most = std::max(most, situation.options[i].devices);
  }
  common.now = common.is_broken ? common.best_own : guesses.told.front();
  common.present = std::max(most, situation.devices_present);
  return common;
}

std::array<float, kOptionFeatures> row_of(const Common& common, std::size_t i) {
  const Situation& situation = common.situation;
  const PlanOption &option = situation.options[i], &now = situation.options.front();
  const double told = common.now - common.guesses.told[i], own = common.now - common.guesses.own[i],
               smooth = common.now - common.guesses.smooth[i];
  const double doubt = option.doubt / std::sqrt(option.told_spread > 1e-6 ? option.times_told : 1);
  const double pause = option.pause_seconds, rest = common.rest, step = std::exp(common.now);
  const double usual = common.is_broken ? 0 : std::log(now.usual_seconds / option.usual_seconds);
  const double devices = std::max(1, option.devices);
  const double before = common.is_broken ? common.present : std::max(1, now.devices);
  const std::array<double, kOptionFeatures> row = {
      i == 0 ? 1.0 : 0.0,
      bounded(told, 2),
      bounded(own, 2),
      bounded(smooth, 2),
      5 * bounded(common.guesses.rough[i], 0.5),
      10 * bounded(doubt, 0.5),
      std::log1p(option.times_told) / 3,
      10 * bounded(option.told_spread, 0.5),
      option.is_measured ? 1.0 : 0.0,
      bounded(pause / rest, 3),
      bounded(1 - std::exp(-own) - pause / rest, 2),
      bounded(1 - std::exp(-own) - pause / kHour, 2),
      std::log1p(pause / step) / 3,
      bounded(usual, 2),
      bounded(std::log(devices / before), 3),
      (common.present - devices) / common.present,
      option.response == Response::resume ? 1.0 : 0.0,
      option.response == Response::drop ? 1.0 : 0.0,
      option.response == Response::share || option.response == Response::recut ? 1.0 : 0.0,
      bounded(common.guesses.own[i] - common.best_own, 2),
      bounded(common.guesses.told[i] - common.best_told, 2),
      bounded(1 - std::exp(-(own - doubt)) - pause / rest, 2),
      std::log1p(option.undone_steps) / 6,
      undone_part(situation, option),
  };
  std::array<float, kOptionFeatures> result{};
  std::transform(row.begin(), row.end(), result.begin(), [](double x) { return static_cast<float>(x); });
  return result;
}

std::array<float, kSituationFeatures> shared_row(const Common& common) {
  const Situation& situation = common.situation;
  double worst = 1, newest = 1e7, links = 0;
  for (const OngoingCondition& one : situation.conditions)
    worst = std::max(worst, one.factor), newest = std::min(newest, one.age),
    links += one.cause == Cause::link;
  const double num = static_cast<double>(situation.conditions.size()), step = std::exp(common.now);
  const double used = common.is_broken ? 0 : situation.options.front().devices;
  const double shortfall = situation.predicted_gain && situation.realised_gain
                               ? *situation.predicted_gain - *situation.realised_gain
                               : 0;
  const std::array<double, kSituationFeatures> row = {
      common.is_broken ? 1.0 : 0.0,
      digits(situation.since_switch) / 4,
      digits(situation.since_loss) / 4,
      digits(situation.since_arrival) / 4,
      std::log1p(situation.losses_last_hour) / 3,
      std::log1p(situation.arrivals_last_hour) / 3,
      std::min(num, 8.0) / 4,
      bounded(std::log(worst), 2),
      num > 0 ? digits(newest) / 4 : 0,
      num > 0 ? links / num : 0,
      digits(common.rest) / 4,
      bounded(std::log(step / common.rest) / 5, 3),
      std::log1p(situation.recovery_seconds / step) / 3,
      (common.present - used) / common.present,
      std::log1p(situation.switches / std::max(situation.now / kHour, 1.0)) / 3,
      bounded(shortfall, 1),
      bounded(situation.mean_miss, 1),
      5 * bounded(situation.miss_spread, 0.5),
  };
  std::array<float, kSituationFeatures> result{};
  std::transform(row.begin(), row.end(), result.begin(), [](double x) { return static_cast<float>(x); });
  return result;
}

}  // namespace

const std::array<const char*, kFeatures>& feature_names() {
  static constexpr std::array<const char*, kFeatures> kNames = {"stays",
                                                                "gain told",
                                                                "gain expected",
                                                                "gain by neighbours",
                                                                "neighbours differ",
                                                                "doubt",
                                                                "times told",
                                                                "spread told",
                                                                "measured",
                                                                "pause of rest",
                                                                "net in rest",
                                                                "net in an hour",
                                                                "pause in steps",
                                                                "usual gain",
                                                                "devices",
                                                                "spare",
                                                                "goes back",
                                                                "drops",
                                                                "shares or recuts",
                                                                "behind best expected",
                                                                "behind best told",
                                                                "net doubted",
                                                                "undone by a loss",
                                                                "undone by losses",
                                                                "cannot run",
                                                                "since switch",
                                                                "since loss",
                                                                "since arrival",
                                                                "losses",
                                                                "arrivals",
                                                                "conditions",
                                                                "worst factor",
                                                                "age",
                                                                "links",
                                                                "rest",
                                                                "step of rest",
                                                                "recovery in steps",
                                                                "unused",
                                                                "switches",
                                                                "shortfall",
                                                                "miss",
                                                                "spread of misses"};
  return kNames;
}

Situation without_misses(Situation situation) {
  const Situation nothing;
  situation.num_missed = nothing.num_missed, situation.mean_miss = nothing.mean_miss;
  situation.miss_spread = nothing.miss_spread;
  situation.predicted_gain = situation.realised_gain = std::nullopt;
  for (PlanOption& option : situation.options)
    option.remembered_seconds = option.step_seconds, option.times_told = 1, option.told_spread = 0;
  return situation;
}

FeatureTable features_of(const Situation& situation) {
  const Guesses guesses = guesses_of(situation);
  FeatureTable table;
  table.options = worth_a_look(situation, guesses);
  const Common common = common_of(situation, guesses);
  table.situation = shared_row(common);
  for (const std::size_t i : table.options) {
    table.rows.push_back(row_of(common, i));
    table.estimates.push_back(std::exp(guesses.own[i]));
  }
  return table;
}

}  // namespace optimus
