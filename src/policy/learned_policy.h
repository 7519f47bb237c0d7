// The learned policy: a small neural network that scores each option of a situation
// (policy/policy_features.h) and chooses the one with the highest score. The size of the network does not
// depend on the cluster. This file contains only inference, in plain C++. It is deterministic and takes
// microseconds. trials/learning.h trains the network.
//
// Guards (docs/understand/learned-policy.md): the rule policy decides instead if the situation is outside the
// training data, if the network's choice is uncertain or expected to be slower, or if earlier switches did
// not reach their predicted gains. The reason of the choice names the guard.
//
// A policy file is a safetensors file that contains the weights of the three layers and the range of each
// feature in training. The default policy is compiled into the binary.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "policy/policy.h"
#include "policy/policy_features.h"

namespace optimus {

// The longest pause of a switch, and the longest transfer of state, that occur in the simulated runs for
// training. In seconds.
inline constexpr double kMaxSwitchSeconds = 2, kMaxMoveSeconds = 60;

inline constexpr std::size_t kFirstLayer = 24, kSecondLayer = 12;

// The weights of the network, stored in `numbers`; the constants are offsets into this array. The first
// matrix has a row for each feature and a column for each unit of the first layer. The second matrix is
// stored in the same way. Units have a bias and a leaky ReLU with slope 1 / 20.
struct LearnedPolicy {
  static constexpr std::size_t kFirst = 0, kFirstBias = kFeatures * kFirstLayer,
                               kSecond = kFirstBias + kFirstLayer,
                               kSecondBias = kSecond + kFirstLayer * kSecondLayer,
                               kLast = kSecondBias + kSecondLayer, kNumbers = kLast + kSecondLayer;
  std::array<float, kNumbers> numbers{};
  // The range of each feature in training. Inputs are clamped to it.
  std::array<float, kFeatures> min_values{}, max_values{};
  std::map<std::string, std::string> origin{};  // metadata of the policy file: how the policy was trained
  // Whether the features include the errors of earlier predictions. False if the file's metadata entry
  // `without` is `residual`.
  bool uses_prediction_errors = true;

  FeatureTable features(const Situation& situation) const {
    return features_of(uses_prediction_errors ? situation : without_prediction_errors(situation));
  }
};
// The metadata key and its value if uses_prediction_errors is false.
inline constexpr const char *kWithout = "without", *kResidual = "residual";

// The activations of the network for one option, kept for the backward pass in training.
struct NetworkPass {
  std::array<float, kFirstLayer> first{};
  std::array<float, kSecondLayer> second{};
  float score = 0;
};
// Evaluates the network for all rows of the table. The contribution of the situation's features to the
// first layer is computed once.
std::vector<NetworkPass> passes_of(const LearnedPolicy& network, const FeatureTable& table);

// The softmax of the scores: the probability of each row.
std::vector<double> probabilities_of(std::span<const NetworkPass> passes);

// Throws UserError with `source` and the problem: a missing tensor, a wrong shape, a type other than float32,
// non-finite values, or a range whose minimum exceeds its maximum.
LearnedPolicy parse_learned_policy(std::span<const std::byte> file, const std::string& source);
LearnedPolicy read_learned_policy(const Path& path);
void write_learned_policy(const LearnedPolicy& network, const Path& path);  // throws RuntimeFailure
const LearnedPolicy& shipped_policy();

// Returns the network's choice, or the choice of `rule` if a guard rejects it.
Choice learned_choice(const Policy& policy, const Situation& situation, const std::function<Choice()>& rule);

}  // namespace optimus
