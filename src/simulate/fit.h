// Fits constants to measured runs: minimizes the absolute errors of the logarithms by reweighted Gauss-Newton
// steps. Each constant is regularized towards its prior. Used by bench_fit on published runs, and by refit()
// on the steps of the user's own runs.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cost/constants.h"

namespace optimus {

// The task of finding constants for which predict(i, constants) approximates measured[i].
struct FitProblem {
  std::vector<double> measured;
  std::vector<double> weights;  // weight of each measurement
  std::function<double(std::size_t, const Constants&)> predict;
  std::vector<std::string> constant_names;  // names of the constants to fit
};

struct FitOptions {
  int steps = 20;
  double spread = 0.25;  // standard deviation of a constant's logarithm around its prior
  double noise = 0.04;   // standard deviation of a measurement's logarithm
  Constants prior{};
};

// Fits the constants, starting at `start`. Constants that are not in problem.constant_names keep their
// values.
Constants fit(const FitProblem& problem, const Constants& start, const FitOptions& options);

}  // namespace optimus
