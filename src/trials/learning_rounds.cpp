// Implements learning.h: the training rounds.
#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>
#include <thread>

#include "trials/environment_draw.h"
#include "trials/learning.h"

namespace optimus {
namespace {

// Defaults for ten minutes of training.
constexpr int kImitationRounds = 6, kReinforcementRounds = 8;
constexpr double kTrialsOfRound = 120;    // per family
constexpr std::size_t kLessonsKept = 48;  // per trial; a random subset stands for the rest
constexpr std::size_t kRoundsKept = 3;    // size of the replay buffer in rounds
constexpr int kPasses = 3, kBatch = 32;
constexpr double kImitationRate = 2e-3, kReinforcementRate = 1e-4;
constexpr std::uint64_t kJudgingNumbers = 1'000'000'000'000;  // above all training trials

void for_each_index(int threads, int count, const std::function<void(int)>& work) {
  std::atomic<int> next = 0;
  std::vector<std::jthread> helpers;
  for (int t = 0; t < std::max(1, threads); ++t)
    helpers.emplace_back([&] {
      for (int i = next++; i < count; i = next++) work(i);
    });
}

// A random subset of a trial's examples, weighted to represent all of them.
std::vector<Lesson> thinned(std::vector<Lesson> lessons, std::uint64_t number) {
  if (lessons.size() <= kLessonsKept) return lessons;
  const double weight = static_cast<double>(lessons.size()) / static_cast<double>(kLessonsKept);
  Draw draw(RandomKey(number).with("kept"));
  for (std::size_t i = 0; i < kLessonsKept; ++i)
    std::swap(lessons[i], lessons[i + draw.below(lessons.size() - i)]);
  lessons.resize(kLessonsKept);
  for (Lesson& lesson : lessons) {
    for (double& regret : lesson.regrets) regret *= weight;
    lesson.later *= weight;
  }
  return lessons;
}

void widen(LearnedPolicy& network, const std::vector<Lesson>& lessons) {
  const auto take = [&](std::size_t i, float value) {
    network.low[i] = std::min(network.low[i], value), network.high[i] = std::max(network.high[i], value);
  };
  for (const Lesson& lesson : lessons) {
    for (std::size_t i = 0; i < kSituationFeatures; ++i) take(kOptionFeatures + i, lesson.seen.situation[i]);
    for (const auto& row : lesson.seen.rows)
      for (std::size_t i = 0; i < kOptionFeatures; ++i) take(i, row[i]);
  }
}

class Training {
 public:
  Training(const LearningOptions& options, const std::function<void(const LearningPoint&)>& show)
      : options_(options), show_(show), draw_(RandomKey(options.seed).with("training")) {
    per_family_ = std::max(2, static_cast<int>(kTrialsOfRound * std::min(1.0, options.minutes / 10)));
    const double longer = std::max(1.0, options.minutes / 10);
    imitation_rounds_ = static_cast<int>(kImitationRounds * longer);
    reinforcement_rounds_ = static_cast<int>(kReinforcementRounds * longer);
    if (options.start != nullptr)
      network_ = *options.start;
    else
      begin();
    network_.sees_misses = options.sees_misses;
  }

  LearnedPolicy run() {
    judge_rules();
    judge("start", 0, 0);
    if (options_.imitates)
      for (int round = 0; round < imitation_rounds_; ++round) imitate(round);
    if (options_.imitates) network_ = best_;
    if (options_.reinforces)
      for (int round = 0; round < reinforcement_rounds_; ++round) reinforce(round);
    return best_;
  }

 private:
  void begin() {
    const auto fill = [&](std::size_t first, std::size_t count, double inputs) {
      for (std::size_t i = first; i < first + count; ++i)
        network_.numbers[i] = static_cast<float>(draw_.normal() * std::sqrt(1 / inputs));
    };
    fill(LearnedPolicy::kFirst, kFeatures * kFirstLayer, kFeatures);
    fill(LearnedPolicy::kSecond, kFirstLayer * kSecondLayer, kFirstLayer);
    fill(LearnedPolicy::kLast, kSecondLayer, kSecondLayer);
  }

  // Runs trials of all families in turn; the result is in the order of trials.
  std::vector<std::vector<Lesson>> take_lessons(LessonTaker taker) {
    taker.sees_misses = options_.sees_misses;
    const int num = per_family_ * static_cast<int>(kTrialFamilies.size());
    std::vector<std::vector<Lesson>> all(static_cast<std::size_t>(num));
    const std::uint64_t first = (options_.seed << 32) + trials_;
    for_each_index(options_.threads, num, [&](int i) {
      const TrialFamily family = kTrialFamilies[static_cast<std::size_t>(i) % kTrialFamilies.size()];
      const std::uint64_t number = first + static_cast<std::uint64_t>(i);
      const TrialCase one = random_trial(family, number, options_.environment);
      all[static_cast<std::size_t>(i)] = thinned(lessons_of(one, taker, number), number);
    });
    trials_ += static_cast<std::uint64_t>(num);
    return all;
  }

  void imitate(int round) {
    LessonTaker taker{.network = round == 0 ? nullptr : &network_, .draws = false, .wanders = 0.1};
    std::vector<Lesson> fresh;
    for (std::vector<Lesson>& lessons : take_lessons(taker))
      fresh.insert(fresh.end(), lessons.begin(), lessons.end());
    widen(network_, fresh);
    kept_.push_back(std::move(fresh));
    if (kept_.size() > kRoundsKept) kept_.erase(kept_.begin());
    std::vector<const Lesson*> order;
    for (const std::vector<Lesson>& lessons : kept_)
      for (const Lesson& lesson : lessons) order.push_back(&lesson);
    const double rate = kImitationRate * std::pow(0.7, round);
    double regret = 0;
    for (int pass = 0; pass < kPasses; ++pass) {
      for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw_.below(i)]);
      regret = go_through(order, {}, rate);
    }
    judge("imitation", round + 1, regret);
  }

  void reinforce(int round) {
    const std::vector<std::vector<Lesson>> trials =
        take_lessons({.network = &network_, .draws = true, .wanders = 0});
    if (!options_.imitates)  // the input ranges are not known yet
      for (const std::vector<Lesson>& lessons : trials) widen(network_, lessons);
    std::vector<const Lesson*> order;
    std::vector<double> weights;
    for (const std::vector<Lesson>& lessons : trials) {
      double mean = 0;
      for (const Lesson& lesson : lessons) mean += lesson.later / static_cast<double>(lessons.size());
      for (const Lesson& lesson : lessons) order.push_back(&lesson), weights.push_back(lesson.later - mean);
    }
    std::vector<std::size_t> places(order.size());
    std::iota(places.begin(), places.end(), std::size_t{0});
    for (std::size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[draw_.below(i)]);
    std::vector<const Lesson*> shuffled;
    std::vector<double> of_shuffled;
    for (const std::size_t place : places)
      shuffled.push_back(order[place]), of_shuffled.push_back(weights[place]);
    const double regret = go_through(shuffled, of_shuffled, kReinforcementRate * std::pow(0.93, round));
    judge("reinforcement", round + 1, regret);
  }

  // A pass over the examples; returns the mean regret. `weights`: a weight for the chosen option of each
  // example; empty for imitation.
  double go_through(const std::vector<const Lesson*>& lessons, const std::vector<double>& weights,
                    double rate) {
    double sum = 0;
    std::vector<double> gradient(LearnedPolicy::kNumbers);
    for (std::size_t begin = 0; begin < lessons.size(); begin += kBatch) {
      std::fill(gradient.begin(), gradient.end(), 0);
      const std::size_t end = std::min(lessons.size(), begin + kBatch);
      for (std::size_t i = begin; i < end; ++i)
        sum += add_gradient(network_, *lessons[i], weights.empty() ? 0 : weights[i], gradient);
      improver_.step(network_, gradient, rate);
    }
    return sum / static_cast<double>(std::max<std::size_t>(1, lessons.size()));
  }

  void judge_rules() {
    for (const TrialFamily family : kTrialFamilies) {
      double best = 0;
      for (const PolicyKind kind : {PolicyKind::always_best, PolicyKind::threshold, PolicyKind::lookahead,
                                    PolicyKind::malleus, PolicyKind::rule})
        best = std::max(best, mean_fraction({.kind = kind}, family, kJudgingNumbers, options_.judging_trials,
                                            options_.threads, options_.environment));
      rules_.push_back(best);
    }
  }

  // The score is the mean over families; deficits relative to the best rule-based policy count twice.
  void judge(const std::string& part, int round, double regret) {
    LearningPoint point{part, round, regret, 0, {}, rules_};
    double worth = 0;
    for (std::size_t f = 0; f < kTrialFamilies.size(); ++f) {
      const double fraction = mean_fraction(
          {.kind = PolicyKind::learned, .network = &network_, .is_guarded = false}, kTrialFamilies[f],
          kJudgingNumbers, options_.judging_trials, options_.threads, options_.environment);
      point.by_family.push_back(fraction);
      point.fraction += fraction / static_cast<double>(kTrialFamilies.size());
      worth += fraction - std::max(0.0, rules_[f] - fraction);
    }
    if (worth > best_worth_) best_worth_ = worth, best_ = network_;
    show_(point);
  }

  const LearningOptions& options_;
  const std::function<void(const LearningPoint&)>& show_;
  Draw draw_;
  int per_family_ = 1, imitation_rounds_ = 1, reinforcement_rounds_ = 1;
  std::uint64_t trials_ = 0;
  LearnedPolicy network_, best_;
  double best_worth_ = -1e300;
  std::vector<double> rules_;
  std::vector<std::vector<Lesson>> kept_;
  Improver improver_;
};

}  // namespace

double mean_fraction(const Policy& policy, TrialFamily family, std::uint64_t first, int count, int threads,
                     const EnvironmentOptions& environment) {
  std::vector<double> fractions(static_cast<std::size_t>(count));
  for_each_index(threads, count, [&](int i) {
    const TrialCase one = random_trial(family, first + static_cast<std::uint64_t>(i), environment);
    fractions[static_cast<std::size_t>(i)] =
        run_trial(policy, one).useful_steps / std::max(1e-9, hindsight(one).useful_steps);
  });
  return std::accumulate(fractions.begin(), fractions.end(), 0.0) / count;
}

LearnedPolicy learn(const LearningOptions& options, const std::function<void(const LearningPoint&)>& show) {
  return Training(options, show).run();
}

}  // namespace optimus
