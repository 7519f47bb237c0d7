// The learned policy: inference, its file, its guards, the environment, and a short training.
#include "adapt/learned_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "trials/environment.h"
#include "trials/environment_draw.h"
#include "trials/learning.h"
#include "trials/trial_values.h"

namespace optimus {
namespace {

LearnedPolicy random_network(std::uint64_t seed) {
  Draw draw(RandomKey(seed).with("network"));
  LearnedPolicy network;
  for (float& number : network.numbers) number = static_cast<float>(0.3 * draw.normal());
  network.low.fill(-2), network.high.fill(2);
  return network;
}

FeatureTable random_table(std::uint64_t seed, std::size_t rows) {
  Draw draw(RandomKey(seed).with("table"));
  FeatureTable table;
  for (float& value : table.situation) value = static_cast<float>(1.5 * draw.normal());
  table.rows.resize(rows);
  for (auto& row : table.rows)
    for (float& value : row) value = static_cast<float>(1.5 * draw.normal());
  for (std::size_t i = 0; i < rows; ++i) table.options.push_back(i), table.estimates.push_back(1);
  return table;
}

// The network as its header describes it, in double and as plainly as possible.
double reference_score(const LearnedPolicy& network, const FeatureTable& table, std::size_t row) {
  std::vector<double> inputs;
  for (std::size_t i = 0; i < kFeatures; ++i) {
    const double value = i < kOptionFeatures ? table.rows[row][i] : table.situation[i - kOptionFeatures];
    inputs.push_back(std::min<double>(network.high[i], std::max<double>(network.low[i], value)));
  }
  const auto layer = [&](const std::vector<double>& from, std::size_t weights, std::size_t bias,
                         std::size_t units) {
    std::vector<double> to;
    for (std::size_t u = 0; u < units; ++u) {
      double sum = network.numbers[bias + u];
      for (std::size_t i = 0; i < from.size(); ++i) sum += from[i] * network.numbers[weights + i * units + u];
      to.push_back(sum > 0 ? sum : 0.05 * sum);
    }
    return to;
  };
  const std::vector<double> first =
      layer(inputs, LearnedPolicy::kFirst, LearnedPolicy::kFirstBias, kFirstLayer);
  const std::vector<double> second =
      layer(first, LearnedPolicy::kSecond, LearnedPolicy::kSecondBias, kSecondLayer);
  double score = 0;
  for (std::size_t u = 0; u < kSecondLayer; ++u)
    score += second[u] * network.numbers[LearnedPolicy::kLast + u];
  return score;
}

TEST(LearnedPolicy, InferenceIsTheNetwork) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const LearnedPolicy network = random_network(seed);
    const FeatureTable table = random_table(seed, 7);
    const std::vector<NetworkPass> passes = passes_of(network, table);
    ASSERT_EQ(passes.size(), 7u);
    // Sums of 41, 25 and 12 terms in float, terms of at most 2 x 1 and some 10 of them at a time: 78 x 2^-24 x 100 = 5e-4.
    for (std::size_t row = 0; row < 7; ++row)
      EXPECT_NEAR(passes[row].score, reference_score(network, table, row), 5e-4);
    double sum = 0;
    for (const double chance : chances_of(passes)) sum += chance;
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(LearnedPolicy, GradientsAreSlopes) {
  LearnedPolicy network = random_network(3);
  Lesson lesson{.seen = random_table(5, 4), .regrets = {0, 1.5, 0.4, 3}, .taken = 2, .later = 0};
  const double weight = 0.7;
  std::vector<double> gradient(LearnedPolicy::kNumbers, 0), unused(LearnedPolicy::kNumbers, 0);
  add_gradient(network, lesson, weight, gradient);
  const auto value = [&] {
    const std::vector<double> chances = chances_of(passes_of(network, lesson.seen));
    double sum = weight * std::log(chances[lesson.taken]);
    for (std::size_t row = 0; row < chances.size(); ++row) sum += chances[row] * lesson.regrets[row];
    return sum;
  };
  int compared = 0;
  for (std::size_t i = 0; i < LearnedPolicy::kNumbers; i += 7, ++compared) {
    const float before = network.numbers[i];
    constexpr float kStep = 4e-3F;
    network.numbers[i] = before + kStep;
    const double above = value();
    network.numbers[i] = before - kStep;
    const double below = value();
    network.numbers[i] = before;
    // Float scores are off by 1e-6, so slopes by 1e-6 x 3 / 8e-3 = 4e-4; curvature and units that bend within the step: a few percent.
    EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 2e-3 + 0.05 * std::abs(gradient[i])) << i;
  }
  EXPECT_GT(compared, 150);
}

std::string file_of(const LearnedPolicy& network) {
  const Path path = Path(testing::TempDir()) / "policy.safetensors";
  write_learned_policy(network, path);
  return value_or_throw(read_file(path));
}

LearnedPolicy parsed(const std::string& bytes) {
  return parse_learned_policy(std::as_bytes(std::span(bytes)), "policy");
}

// One line that names the file.
void expect_refused(const std::string& bytes, const std::string& says) {
  try {
    (void)parsed(bytes);
    ADD_FAILURE() << "read: " << says;
  } catch (const UserError& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_NE(text.find("policy"), std::string::npos) << text;
    EXPECT_NE(text.find(says), std::string::npos) << text;
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  EXPECT_EQ(from.size(), to.size());
  return text.replace(at, from.size(), to);
}

TEST(LearnedPolicyFile, ReadsBack) {
  LearnedPolicy network = random_network(9);
  network.origin = {{"seed", "9"}};
  const LearnedPolicy back = parsed(file_of(network));
  EXPECT_EQ(back.numbers, network.numbers);
  EXPECT_EQ(back.low, network.low);
  EXPECT_EQ(back.high, network.high);
  EXPECT_EQ(back.origin.at("seed"), "9");
}

// Who was trained without an account of what predictions were off by is told of none, also when it is read from its file.
TEST(LearnedPolicyFile, WithoutResidualIsRemembered) {
  Situation exact, wrong;
  exact.options = {{.step_seconds = 1, .usual_seconds = 1, .devices = 8},
                   {.response = Response::replan, .step_seconds = 0.8, .usual_seconds = 0.8, .devices = 8}};
  wrong = exact;
  wrong.num_missed = 5, wrong.mean_miss = 0.3, wrong.miss_spread = 0.1;
  wrong.options[1].remembered_seconds = 1.1, wrong.options[1].times_told = 4;
  wrong.options[1].told_spread = 0.2;
  LearnedPolicy network = random_network(9);
  network.origin = {{kWithout, "nothing"}};
  const LearnedPolicy usual = parsed(file_of(network));
  EXPECT_NE(usual.features(exact).rows, usual.features(wrong).rows);
  network.origin = {{kWithout, kResidual}};
  const LearnedPolicy blind = parsed(file_of(network));
  EXPECT_EQ(blind.features(exact).rows, blind.features(wrong).rows);
  EXPECT_EQ(blind.features(exact).situation, blind.features(wrong).situation);
  EXPECT_EQ(blind.features(exact).estimates, blind.features(wrong).estimates);
}

TEST(LearnedPolicyFile, WhatIsNoneIsRefused) {
  const std::string good = file_of(random_network(9));
  for (std::size_t cut = 0; cut < good.size(); cut += 1 + cut / 8) expect_refused(good.substr(0, cut), "");
  expect_refused(good + "x", "");
  expect_refused(replaced(good, "optimus-policy-1", "optimus-policy-2"), "optimus-policy-2");
  expect_refused(replaced(good, "first.bias", "thirst.bis"), "first.bias");
  LearnedPolicy bad = random_network(9);
  bad.numbers[5] = std::nanf("");
  expect_refused(file_of(bad), "first.weight");
  bad = random_network(9), bad.low[3] = 1, bad.high[3] = -1;
  expect_refused(file_of(bad), "upside down");
  // Bytes of the header at random: refused, or read as the same kind of thing; never anything else.
  for (std::uint64_t i = 0; i < 300; ++i) {
    std::string broken = good;
    broken[8 + random_below(RandomKey(1), 2 * i, 700)] =
        static_cast<char>(random_below(RandomKey(1), 2 * i + 1, 256));
    try {
      (void)parsed(broken);
    } catch (const UserError& error) {
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    }
  }
}

// A device is slow, and another plan is a fifth quicker.
Situation usual_situation() {
  Situation now{.now = 7200};
  now.options = {{Response::stay, 1.5, 1, 0.01, 0, 8}, {Response::share, 1.2, 1.02, 0.05, 2, 8}};
  now.options.front().is_measured = true;
  now.conditions = {{Cause::device, 1.5, 60}};
  now.since_switch = 3600, now.devices_present = 8;
  return now;
}

// Knows but one feature: the score is the gain that was told, times `sign`.
LearnedPolicy one_sided(float sign) {
  LearnedPolicy network;
  network.low.fill(-100), network.high.fill(100);
  network.numbers[1 * kFirstLayer] = 1, network.numbers[LearnedPolicy::kSecond] = 1;
  network.numbers[LearnedPolicy::kFirstBias] = 5;  // the unit stays in its straight part
  network.numbers[LearnedPolicy::kLast] = sign;
  return network;
}

TEST(LearnedPolicyGuards, TheRuleDecidesWhereItMust) {
  const LearnedPolicy network = one_sided(20);
  Policy policy{.kind = PolicyKind::learned, .network = &network};
  Situation now = usual_situation();
  EXPECT_EQ(choose(policy, now).option, 1u);
  EXPECT_NE(choose(policy, now).reason.find("sure to"), std::string::npos);

  LearnedPolicy narrow = network;
  narrow.low[kOptionFeatures + 7] = 0, narrow.high[kOptionFeatures + 7] = 0.1F;  // of the worst factor
  policy.network = &narrow;
  const Choice rule = choose({.kind = PolicyKind::rule}, now);
  Choice choice = choose(policy, now);
  EXPECT_NE(choice.reason.find("unfamiliar (worst factor"), std::string::npos) << choice.reason;
  EXPECT_EQ(choice.option, rule.option);

  policy.network = &network;
  Situation other = now;
  other.options[1].pause_seconds = 110;
  choice = choose(policy, other);
  EXPECT_NE(choice.reason.find("unfamiliar (a pause of"), std::string::npos) << choice.reason;
  EXPECT_EQ(choice.option, choose({.kind = PolicyKind::rule}, other).option);
  other = now, other.run_left = 0.1;
  choice = choose(policy, other);
  EXPECT_NE(choice.reason.find("the run ends soon"), std::string::npos) << choice.reason;
  EXPECT_EQ(choice.option, 0u);

  const LearnedPolicy slow = one_sided(-1);  // likes what is slow
  policy.network = &slow;
  now.options[1].step_seconds = 2.5;
  choice = choose(policy, now);
  EXPECT_NE(choice.reason.find("vetoed"), std::string::npos) << choice.reason;
  EXPECT_EQ(choice.option, 0u);
  policy.is_guarded = false;
  EXPECT_EQ(choose(policy, now).option, 1u);

  now = usual_situation(), policy = {.kind = PolicyKind::learned, .network = &network};
  now.num_judged = 4, now.gain_promised = 0.4, now.gain_kept = 0.05;
  EXPECT_NE(choose(policy, now).reason.find("did not come"), std::string::npos);
  now.gain_kept = 0.3;
  EXPECT_NE(choose(policy, now).reason.find("sure to"), std::string::npos);

  now = usual_situation(), now.conditions.clear();
  choice = choose(policy, now);
  EXPECT_NE(choice.reason.find("nothing was slow or changed"), std::string::npos) << choice.reason;
  EXPECT_EQ(choice.option, choose({.kind = PolicyKind::rule}, now).option);
  now.switches = 1;  // it has come here because of something
  EXPECT_NE(choose(policy, now).reason.find("sure to"), std::string::npos);

  // It likes to stay, where the rule has something much quicker.
  now = usual_situation(), policy.network = &slow;
  now.options.front().step_seconds = 1, now.options[1].step_seconds = 0.5;
  choice = choose(policy, now);
  EXPECT_EQ(choice.option, 1u);
  EXPECT_NE(choice.reason.find("the rule's step"), std::string::npos) << choice.reason;

  const LearnedPolicy faint = one_sided(0.05F);  // likes the quicker one, but hardly
  now = usual_situation(), policy.network = &faint;
  choice = choose(policy, now);
  EXPECT_NE(choice.reason.find("unsure ("), std::string::npos) << choice.reason;
  EXPECT_EQ(choice.option, choose({.kind = PolicyKind::rule}, now).option);
  now.options.front().step_seconds = 0;  // nothing runs: somebody has to choose
  EXPECT_NE(choose(policy, now).reason.find("sure to"), std::string::npos);
}

TEST(Environment, TheSameNumberIsTheSameTrial) {
  for (const TrialFamily family : kTrialFamilies) {
    const TrialCase one = random_trial(family, 17), again = random_trial(family, 17),
                    other = random_trial(family, 18);
    EXPECT_EQ(hindsight(one).useful_steps, hindsight(again).useful_steps);
    EXPECT_NE(hindsight(one).useful_steps, hindsight(other).useful_steps);
    double at = 0;
    for (const TrialSegment& segment : one.segments) {
      EXPECT_EQ(segment.begin, at);
      EXPECT_GT(segment.end, segment.begin);
      EXPECT_EQ(segment.step_seconds.size(), one.modes.size());
      at = segment.end;
    }
    EXPECT_EQ(run_trial({.kind = PolicyKind::learned}, one).useful_steps,
              run_trial({.kind = PolicyKind::learned}, again).useful_steps);
  }
}

TEST(Environment, PiecesBeginWithWhoIsThere) {
  const AvailabilityTrace whole = random_trace(TrialFamily::spot, 16, 3);
  const double cut = 0.6 * whole.length;
  int there = 0;
  for (const NodeEvent& event : whole.events) there += event.seconds <= cut ? (event.is_add ? 1 : -1) : 0;
  const AvailabilityTrace rest = piece_of(whole, cut, whole.length);
  EXPECT_EQ(node_counts(rest).front().nodes, there);
  EXPECT_NEAR(rest.length, 0.4 * whole.length, 1e-6);
}

// Who knows what is to come and pays as policies do is not better than who pays less, and better than rules on the whole.
TEST(TrialValues, HindsightThatPaysIsBetweenRulesAndTheOracle) {
  double pays = 0, rules = 0;
  for (const TrialFamily family : kTrialFamilies)
    for (std::uint64_t number = 50; number < 56; ++number) {
      const TrialCase one = random_trial(family, number);
      const TrialValues values(one);
      const Decider knows = [&](const Situation&, const TrialPoint& point) {
        const std::vector<double> worth = values.of_options(point);
        const auto most = std::max_element(worth.begin(), worth.end());
        return Choice{
            *most > worth.front() + 1e-9 ? static_cast<std::size_t>(most - worth.begin()) : 0, 0, {}};
      };
      const double best = hindsight(one).useful_steps, own = run_trial(knows, one).useful_steps;
      EXPECT_LE(own, best * (1 + 1e-9));
      pays += own / best, rules += run_trial({.kind = PolicyKind::rule}, one).useful_steps / best;
    }
  EXPECT_GT(pays, rules);
}

TEST(Learning, AShortTrainingImprovesAndRepeats) {
  LearningOptions options;
  options.minutes = 0.3, options.reinforces = false, options.seed = 5, options.judging_trials = 6;
  std::vector<double> curve;
  const LearnedPolicy one =
      learn(options, [&](const LearningPoint& point) { curve.push_back(point.fraction); });
  ASSERT_GE(curve.size(), 3u);
  // A random network stands still or wanders; the first round of lessons ends most of that.
  EXPECT_GT(curve.back(), curve.front() + 0.05);
  EXPECT_GT(curve.back(), 0.95);
  options.threads = 1;
  const LearnedPolicy again = learn(options, [](const LearningPoint&) {});
  EXPECT_EQ(std::memcmp(one.numbers.data(), again.numbers.data(), sizeof one.numbers), 0);
}

// Trials with numbers that no training uses. The rule is among those that it has to be better than on the mean.
TEST(Learning, TheShippedPolicyIsBetterThanTheRule) {
  constexpr std::uint64_t kFirst = 9'000'000'000'000;
  double learned = 0, rule = 0;
  for (const TrialFamily family : kTrialFamilies) {
    const double own = mean_fraction({.kind = PolicyKind::learned}, family, kFirst, 20, 2),
                 of_rule = mean_fraction({.kind = PolicyKind::rule}, family, kFirst, 20, 2);
    EXPECT_GT(own, of_rule - 0.02) << text(family);
    learned += own, rule += of_rule;
  }
  EXPECT_GT(learned, rule);
}

}  // namespace
}  // namespace optimus
