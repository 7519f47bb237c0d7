// The learned policy: a small network that scores each option of a situation (adapt/policy_features.h); the highest score is chosen. Its
// size does not depend on the cluster's. Inference alone, in plain C++, microseconds, the same every time; trials/learning.h trains it.
//
// Guards (docs/policy.md): where the situation lies outside of what training has seen, where the choice is expected to be slower or is not
// sure, and where what it promised did not come, the rule decides, and the reason says so.
//
// A policy is a safetensors file of three layers and the ranges of the features in training; one is compiled in.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "adapt/decide.h"
#include "adapt/policy_features.h"
#include "base/file.h"

namespace optimus {

// Seconds: what a change of plan of a trial takes, at most, and what moving its state does.
inline constexpr double kLongestSwitch = 2, kLongestMove = 60;

inline constexpr std::size_t kFirstLayer = 24, kSecondLayer = 12;

// Rows of `first` are features, its columns the first layer's units; and so on. Units have a bias and are leaky: x or x / 20.
struct LearnedPolicy {
  static constexpr std::size_t kFirst = 0, kFirstBias = kFeatures * kFirstLayer,
                               kSecond = kFirstBias + kFirstLayer,
                               kSecondBias = kSecond + kFirstLayer * kSecondLayer,
                               kLast = kSecondBias + kSecondLayer, kNumbers = kLast + kSecondLayer;
  std::array<float, kNumbers> numbers{};
  std::array<float, kFeatures> low{},
      high{};  // of the features in training; what lies beyond counts as these
  std::map<std::string, std::string> origin{};  // how it came about, for people
  bool sees_misses =
      true;  // false: trained without what predictions were off by, and not told of it (origin: without residual)

  FeatureTable features(const Situation& situation) const {
    return features_of(sees_misses ? situation : without_misses(situation));
  }
};
// The word of `origin` for that, and its key.
inline constexpr const char *kWithout = "without", *kResidual = "residual";

// What the network makes of one option, kept for training.
struct NetworkPass {
  std::array<float, kFirstLayer> first{};
  std::array<float, kSecondLayer> second{};
  float score = 0;
};
// Of all rows of a table. The first layer's part of the situation is computed once.
std::vector<NetworkPass> passes_of(const LearnedPolicy& network, const FeatureTable& table);

// Of the scores; they add up to 1.
std::vector<double> chances_of(std::span<const NetworkPass> passes);

// Throws UserError with `source` and what is wrong: tensors that are missing, have other shapes or are no finite float32, ranges upside down.
LearnedPolicy parse_learned_policy(std::span<const std::byte> file, const std::string& source);
LearnedPolicy read_learned_policy(const Path& path);
void write_learned_policy(const LearnedPolicy& network, const Path& path);  // throws UserError
const LearnedPolicy& shipped_policy();

// `rule` is asked where a guard speaks.
Choice learned_choice(const Policy& policy, const Situation& situation, const std::function<Choice()>& rule);

}  // namespace optimus
