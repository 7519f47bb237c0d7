// The input features of the learned policy: one row of numbers for each promising option of a situation.
// Rows have the same length for clusters of any size. docs/understand/learned-policy.md explains each
// feature. Pure and deterministic.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "policy/situation.h"

namespace optimus {

inline constexpr std::size_t kOptionFeatures = 24, kSituationFeatures = 18;
inline constexpr std::size_t kFeatures = kOptionFeatures + kSituationFeatures;
// Names in the order of the features: first the features of an option, then those of the situation, which
// all options share.
const std::array<const char*, kFeatures>& feature_names();

struct FeatureTable {
  std::array<float, kSituationFeatures> situation{};
  // [row]: index into Situation::options. The first one is 0 (the present plan) unless that plan cannot
  // run.
  std::vector<std::size_t> options{};
  std::vector<std::array<float, kOptionFeatures>> rows{};
  std::vector<double> estimates{};  // [row]: expected step time in seconds, combined from all predictions
};

// The largest number of rows: the present plan, plans that ran before, and the most promising others.
inline constexpr std::size_t kMaxRows = 12;
FeatureTable features_of(const Situation& situation);

// The situation without the errors of earlier predictions, for ablation studies.
Situation without_prediction_errors(Situation situation);

}  // namespace optimus
