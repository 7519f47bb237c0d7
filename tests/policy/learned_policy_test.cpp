// The learned policy: inference, its file, its guards, its training environment, and a short training.
#include "policy/learned_policy.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "trials/environment.h"
#include "trials/learning.h"
#include "trials/random_stream.h"
#include "trials/trial_values.h"

namespace optimus {
namespace {

LearnedPolicy random_network(std::uint64_t seed) {
  RandomStream draw(RandomKey(seed).derive("network"));
  LearnedPolicy network;
  for (float& number : network.numbers) number = static_cast<float>(0.3 * draw.normal());
  network.min_values.fill(-2), network.max_values.fill(2);
  return network;
}

FeatureTable random_table(std::uint64_t seed, std::size_t rows) {
  RandomStream draw(RandomKey(seed).derive("table"));
  FeatureTable table;
  for (float& value : table.situation) value = static_cast<float>(1.5 * draw.normal());
  table.rows.resize(rows);
  for (auto& row : table.rows)
    for (float& value : row) value = static_cast<float>(1.5 * draw.normal());
  for (std::size_t i = 0; i < rows; ++i) table.options.push_back(i), table.estimates.push_back(1);
  return table;
}

// A reference implementation of the network in double precision.
double reference_score(const LearnedPolicy& network, const FeatureTable& table, std::size_t row) {
  std::vector<double> inputs;
  for (std::size_t i = 0; i < kFeatures; ++i) {
    const double value = i < kOptionFeatures ? table.rows[row][i] : table.situation[i - kOptionFeatures];
    inputs.push_back(std::min<double>(network.max_values[i], std::max<double>(network.min_values[i], value)));
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

TEST(LearnedPolicy, InferenceMatchesReference) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const LearnedPolicy network = random_network(seed);
    const FeatureTable table = random_table(seed, 7);
    const std::vector<NetworkPass> passes = passes_of(network, table);
    ASSERT_EQ(passes.size(), 7u);
    // Tolerance: float sums of 41, 25 and 12 terms of at most 2, in values up to about 100: 78 x 2^-24 x 100
    // = 5e-4.
    for (std::size_t row = 0; row < 7; ++row)
      EXPECT_NEAR(passes[row].score, reference_score(network, table, row), 5e-4);
    double sum = 0;
    for (const double one : probabilities_of(passes)) sum += one;
    EXPECT_NEAR(sum, 1, 1e-12);
  }
}

TEST(LearnedPolicy, GradientsMatchFiniteDifferences) {
  LearnedPolicy network = random_network(3);
  TrainingExample example{
      .features = random_table(5, 4), .regrets = {0, 1.5, 0.4, 3}, .chosen_row = 2, .later_regret = 0};
  const double weight = 0.7;
  std::vector<double> gradient(LearnedPolicy::kNumbers, 0), unused(LearnedPolicy::kNumbers, 0);
  add_gradient(network, example, weight, gradient);
  const auto value = [&] {
    const std::vector<double> probabilities = probabilities_of(passes_of(network, example.features));
    double sum = weight * std::log(probabilities[example.chosen_row]);
    for (std::size_t row = 0; row < probabilities.size(); ++row)
      sum += probabilities[row] * example.regrets[row];
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
    // Tolerance: float scores have an error of 1e-6, so differences of 1e-6 x 3 / 8e-3 = 4e-4. Curvature, and
    // units that cross zero within the step, add a few percent.
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

// The message is one line, names the file and contains `says`.
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
  EXPECT_EQ(back.min_values, network.min_values);
  EXPECT_EQ(back.max_values, network.max_values);
  EXPECT_EQ(back.origin.at("seed"), "9");
}

// A network that was trained without errors of predictions does not get them as features, also after it was
// read from a file.
TEST(LearnedPolicyFile, StoresWithoutResidual) {
  Situation exact, wrong;
  exact.options = {{.step_seconds = 1, .usual_seconds = 1, .devices = 8},
                   {.response = Response::replan, .step_seconds = 0.8, .usual_seconds = 0.8, .devices = 8}};
  wrong = exact;
  wrong.num_prediction_errors = 5, wrong.mean_prediction_error = 0.3, wrong.prediction_error_spread = 0.1;
  wrong.options[1].mean_predicted_seconds = 1.1, wrong.options[1].num_predictions = 4;
  wrong.options[1].prediction_spread = 0.2;
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

TEST(LearnedPolicyFile, RefusesInvalidFiles) {
  const std::string good = file_of(random_network(9));
  for (std::size_t cut = 0; cut < good.size(); cut += 1 + cut / 8) expect_refused(good.substr(0, cut), "");
  expect_refused(good + "x", "");
  expect_refused(replaced(good, "optimus-policy-1", "optimus-policy-2"), "optimus-policy-2");
  expect_refused(replaced(good, "first.bias", "thirst.bis"), "first.bias");
  LearnedPolicy bad = random_network(9);
  bad.numbers[5] = std::nanf("");
  expect_refused(file_of(bad), "first.weight");
  bad = random_network(9), bad.min_values[3] = 1, bad.max_values[3] = -1;
  expect_refused(file_of(bad), "reversed");
  // Random changes of header bytes: the file is refused or read, never anything else.
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

// A device is slow, and another plan takes 20 % less time.
Situation usual_situation() {
  Situation now{.elapsed_seconds = 7200};
  now.options = {{Response::stay, 1.5, 1, 0.01, 0, 8}, {Response::share, 1.2, 1.02, 0.05, 2, 8}};
  now.options.front().is_measured = true;
  now.conditions = {{Cause::device, 1.5, 60}};
  now.since_switch = 3600, now.devices_present = 8;
  return now;
}

// A network that uses a single feature: the score is the predicted gain times `sign`.
LearnedPolicy one_sided(float sign) {
  LearnedPolicy network;
  network.min_values.fill(-100), network.max_values.fill(100);
  network.numbers[1 * kFirstLayer] = 1, network.numbers[LearnedPolicy::kSecond] = 1;
  network.numbers[LearnedPolicy::kFirstBias] = 5;  // the unit stays in its linear range
  network.numbers[LearnedPolicy::kLast] = sign;
  return network;
}

Policy with_network(const LearnedPolicy& network) {
  return {.kind = PolicyKind::learned, .network = &network};
}

void expect_reason(const Choice& choice, const std::string& words) {
  EXPECT_NE(choice.reason.find(words), std::string::npos) << choice.reason;
}

// The rule decides, and the reason contains `words`.
void expect_guarded(const Policy& policy, const Situation& now, const std::string& words) {
  const Choice choice = choose(policy, now);
  expect_reason(choice, words);
  EXPECT_EQ(choice.option, choose({.kind = PolicyKind::rule}, now).option);
}

TEST(LearnedPolicyGuards, NetworkDecidesInFamiliarSituations) {
  const LearnedPolicy network = one_sided(20);
  const Choice choice = choose(with_network(network), usual_situation());
  EXPECT_EQ(choice.option, 1u);
  expect_reason(choice, "learned policy, ");
}

TEST(LearnedPolicyGuards, RuleDecidesWithUnfamiliarFeatures) {
  LearnedPolicy narrow = one_sided(20);
  narrow.min_values[kOptionFeatures + 7] = 0,
                                      narrow.max_values[kOptionFeatures + 7] = 0.1F;  // of the worst factor
  expect_guarded(with_network(narrow), usual_situation(), "unfamiliar (worst factor");
}

TEST(LearnedPolicyGuards, RuleDecidesAboutLongPausesAndAtTheEndOfTheRun) {
  const LearnedPolicy network = one_sided(20);
  Situation now = usual_situation();
  now.options[1].pause_seconds = 110;
  expect_guarded(with_network(network), now, "unfamiliar (a pause of");
  now = usual_situation(), now.run_left = 0.1;
  expect_guarded(with_network(network), now, "the run ends soon");
  EXPECT_EQ(choose(with_network(network), now).option, 0u);
}

TEST(LearnedPolicyGuards, SlowerChoicesAreVetoed) {
  const LearnedPolicy prefers_slow = one_sided(-1);
  Policy policy = with_network(prefers_slow);
  Situation now = usual_situation();
  now.options[1].step_seconds = 2.5;
  expect_reason(choose(policy, now), "vetoed");
  EXPECT_EQ(choose(policy, now).option, 0u);
  policy.is_guarded = false;
  EXPECT_EQ(choose(policy, now).option, 1u);
  // The network prefers the present plan although the rule has a much faster one.
  now = usual_situation(), policy.is_guarded = true;
  now.options.front().step_seconds = 1, now.options[1].step_seconds = 0.5;
  expect_reason(choose(policy, now), "the rule's choice");
  EXPECT_EQ(choose(policy, now).option, 1u);
}

TEST(LearnedPolicyGuards, RuleDecidesAfterMissedGains) {
  const LearnedPolicy network = one_sided(20);
  Situation now = usual_situation();
  now.num_judged_switches = 4, now.predicted_gain_sum = 0.4, now.measured_gain_sum = 0.05;
  expect_reason(choose(with_network(network), now), "predicted gains were not reached");
  now.measured_gain_sum = 0.3;
  expect_reason(choose(with_network(network), now), "learned policy, ");
}

TEST(LearnedPolicyGuards, RuleDecidesInUntouchedRuns) {
  const LearnedPolicy network = one_sided(20);
  Situation now = usual_situation();
  now.conditions.clear();
  expect_guarded(with_network(network), now, "no condition, loss or switch so far");
  now.switches = 1;
  expect_reason(choose(with_network(network), now), "learned policy, ");
}

TEST(LearnedPolicyGuards, RuleDecidesWhenTheNetworkIsUncertain) {
  const LearnedPolicy faint = one_sided(0.05F);  // hardly prefers the faster plan
  Situation now = usual_situation();
  expect_guarded(with_network(faint), now, "unsure (");
  now.options.front().step_seconds = 0;  // the present plan cannot run, so there must be a choice
  expect_reason(choose(with_network(faint), now), "learned policy, ");
}

TEST(Environment, TrialsAreDeterministic) {
  for (const TrialFamily family : kTrialFamilies) {
    const TrialCase trial_case = random_trial(family, 17), again = random_trial(family, 17),
                    other = random_trial(family, 18);
    EXPECT_EQ(hindsight(trial_case).useful_steps, hindsight(again).useful_steps);
    EXPECT_NE(hindsight(trial_case).useful_steps, hindsight(other).useful_steps);
    double at = 0;
    for (const TrialSegment& segment : trial_case.segments) {
      EXPECT_EQ(segment.begin, at);
      EXPECT_GT(segment.end, segment.begin);
      EXPECT_EQ(segment.step_seconds.size(), trial_case.modes.size());
      at = segment.end;
    }
    EXPECT_EQ(run_trial({.kind = PolicyKind::learned}, trial_case).useful_steps,
              run_trial({.kind = PolicyKind::learned}, again).useful_steps);
  }
}

TEST(Environment, PieceOfTraceBeginsWithPresentNodes) {
  const AvailabilityTrace whole = random_trace(TrialFamily::spot, 16, 3);
  const double cut = 0.6 * whole.length;
  int num_present = 0;
  for (const NodeEvent& event : whole.events)
    num_present += event.seconds <= cut ? (event.is_add ? 1 : -1) : 0;
  const AvailabilityTrace rest = piece_of(whole, cut, whole.length);
  EXPECT_EQ(node_counts(rest).front().nodes, num_present);
  EXPECT_NEAR(rest.length, 0.4 * whole.length, 1e-6);
}

// Hindsight that pays for switches as policies do is not better than the oracle, which pays less, and on
// average better than the rule.
TEST(TrialValues, PayingHindsightIsBetweenRuleAndOracle) {
  double pays = 0, rules = 0;
  for (const TrialFamily family : kTrialFamilies)
    for (std::uint64_t number = 50; number < 56; ++number) {
      const TrialCase trial_case = random_trial(family, number);
      const TrialValues values(trial_case);
      const Decider with_hindsight = [&](const Situation&, const TrialPoint& point) {
        const std::vector<double> worth = values.values_of_options(point);
        const auto most = std::max_element(worth.begin(), worth.end());
        return Choice{
            *most > worth.front() + 1e-9 ? static_cast<std::size_t>(most - worth.begin()) : 0, 0, {}};
      };
      const double best = hindsight(trial_case).useful_steps,
                   own = run_trial(with_hindsight, trial_case).useful_steps;
      EXPECT_LE(own, best * (1 + 1e-9));
      pays += own / best, rules += run_trial({.kind = PolicyKind::rule}, trial_case).useful_steps / best;
    }
  EXPECT_GT(pays, rules);
}

TEST(Learning, ShortTrainingImprovesAndIsDeterministic) {
  LearningOptions options;
  options.minutes = 0.3, options.reinforces = false, options.seed = 5, options.evaluation_trials = 6;
  std::vector<double> curve;
  const LearnedPolicy one =
      learn(options, [&](const LearningPoint& point) { curve.push_back(point.fraction); });
  ASSERT_GE(curve.size(), 3u);
  // A random network never switches, or switches at random. The first round of training examples removes most
  // of that.
  EXPECT_GT(curve.back(), curve.front() + 0.05);
  EXPECT_GT(curve.back(), 0.95);
  options.threads = 1;
  const LearnedPolicy again = learn(options, [](const LearningPoint&) {});
  EXPECT_EQ(std::memcmp(one.numbers.data(), again.numbers.data(), sizeof one.numbers), 0);
}

// These trial numbers are not used in training. The learned policy must be better than the rule on average.
TEST(Learning, ShippedPolicyIsBetterThanTheRule) {
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
