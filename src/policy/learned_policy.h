// The learned policy: a small neural network that scores each option of a situation
// (policy/policy_features.h). The highest score is chosen. Its size does not depend on the cluster. This is
// inference only, in plain C++: microseconds, deterministic. trials/learning.h trains it.
//
// Guards (docs/understand/learned-policy.md): the rule decides if the situation lies outside of the training
// data, if the choice is expected to be slower or is uncertain, or if earlier gains were missed. The reason
// of the choice names the guard.
//
// A policy file is a safetensors file with three layers and the ranges of the features in training. One is
// compiled in.
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

// The longest pause of a switch in training trials, and the longest time to move its state; seconds.
inline constexpr double kLongestSwitch = 2, kLongestMove = 60;

inline constexpr std::size_t kFirstLayer = 24, kSecondLayer = 12;

// The weights of the network. Rows of `first` are features, its columns are the units of the first layer; the
// next layers accordingly. Units have a bias and a leaky ReLU with slope 1 / 20.
struct LearnedPolicy {
  static constexpr std::size_t kFirst = 0, kFirstBias = kFeatures * kFirstLayer,
                               kSecond = kFirstBias + kFirstLayer,
                               kSecondBias = kSecond + kFirstLayer * kSecondLayer,
                               kLast = kSecondBias + kSecondLayer, kNumbers = kLast + kSecondLayer;
  std::array<float, kNumbers> numbers{};
  // Ranges of the features in training. Values outside of them are clamped.
  std::array<float, kFeatures> min_values{}, max_values{};
  std::map<std::string, std::string> origin{};  // metadata of its training, for users
  // Whether the features include errors of earlier predictions. False: metadata `without` is `residual`.
  bool sees_misses = true;

  FeatureTable features(const Situation& situation) const {
    return features_of(sees_misses ? situation : without_misses(situation));
  }
};
// The metadata key and value for sees_misses = false.
inline constexpr const char *kWithout = "without", *kResidual = "residual";

// The activations for one option, saved for training.
struct NetworkPass {
  std::array<float, kFirstLayer> first{};
  std::array<float, kSecondLayer> second{};
  float score = 0;
};
// For all rows of a table. The situation's part of the first layer is computed once.
std::vector<NetworkPass> passes_of(const LearnedPolicy& network, const FeatureTable& table);

// The softmax of the scores.
std::vector<double> probabilities_of(std::span<const NetworkPass> passes);

// Throws UserError with `source` and the problem: a missing tensor, another shape, a type other than float32,
// values that are not finite, a range with low > high.
LearnedPolicy parse_learned_policy(std::span<const std::byte> file, const std::string& source);
LearnedPolicy read_learned_policy(const Path& path);
void write_learned_policy(const LearnedPolicy& network, const Path& path);  // throws UserError
const LearnedPolicy& shipped_policy();

// Calls `rule` where a guard applies.
Choice learned_choice(const Policy& policy, const Situation& situation, const std::function<Choice()>& rule);

}  // namespace optimus
