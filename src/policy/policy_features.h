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
// The names of the features in order: first the features of an option, then those of the situation, which are
// the same for all options.
const std::array<const char*, kFeatures>& feature_names();

struct FeatureTable {
  std::array<float, kSituationFeatures> situation{};
  // [row]: index into Situation::options. The first row is option 0 (the current plan), unless that plan
  // cannot run.
  std::vector<std::size_t> options{};
  std::vector<std::array<float, kOptionFeatures>> rows{};
  std::vector<double> estimates{};  // [row]: expected step time in seconds, combined from all predictions
};

// The maximum number of rows: the current plan, plans that ran before, and the most promising other plans.
inline constexpr std::size_t kMaxRows = 12;
FeatureTable features_of(const Situation& situation);

// Returns the situation with the errors of earlier predictions removed, for ablation studies.
Situation without_prediction_errors(Situation situation);

}  // namespace optimus
