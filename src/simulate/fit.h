// Fits constants to measured runs: minimises absolute errors of the logarithm by reweighted Gauss-Newton
// steps, with each constant regularised towards its prior. Used by bench_fit on published runs, and on a
// run's own steps.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cost/constants.h"

namespace optimus {

// Fits constants such that predict(i, constants) approximates measured[i].
struct FitProblem {
  std::vector<double> measured;
  std::vector<double> weights;  // weight of each measurement
  std::function<double(std::size_t, const Constants&)> predict;
  std::vector<std::string> fitted;  // names of the constants to fit
};

struct FitOptions {
  int steps = 20;
  double spread = 0.25;  // of a constant around its prior, in logarithms
  double noise = 0.04;   // of a measurement
  Constants prior{};
};

// Starts at `start`. Constants that are not fitted keep their values.
Constants fit(const FitProblem& problem, const Constants& start, const FitOptions& options);

}  // namespace optimus
