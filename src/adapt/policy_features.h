// What the learned policy sees of a situation: a row of numbers for each option that is worth a look, of the same length whatever the
// cluster's size. Everything here comes from a Situation; docs/policy.md explains each number. Pure and deterministic.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "adapt/decide.h"

namespace optimus {

inline constexpr std::size_t kOptionFeatures = 24, kSituationFeatures = 18;
inline constexpr std::size_t kFeatures = kOptionFeatures + kSituationFeatures;
// In the order of the numbers: those of an option, then those of the situation, which all options share.
const std::array<const char*, kFeatures>& feature_names();

struct FeatureTable {
  std::array<float, kSituationFeatures> situation{};
  std::vector<std::size_t>
      options{};  // places in Situation::options; the first is 0, staying, unless the plan cannot run
  std::vector<std::array<float, kOptionFeatures>> rows{};
  std::vector<double> estimates{};  // seconds of a step, of each row, from all that was told
};

// At most this many options are looked at: staying, those that promise most, those that ran before.
inline constexpr std::size_t kMostLooked = 12;
FeatureTable features_of(const Situation& situation);

// The same situation told by somebody who keeps no account of how far off predictions were: for those who want to know what that brings.
Situation without_misses(Situation situation);

}  // namespace optimus
