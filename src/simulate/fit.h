// Finding constants on measured runs: least absolute errors of the logarithm, by Gauss-Newton steps with weights, each
// constant held near its prior. Used by bench_fit on published runs, and on a run's own steps.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "cost/constants.h"

namespace optimus {

// Fits constants so that predict(i, constants) meets measured[i].
struct FitProblem {
  std::vector<double> measured;
  std::vector<double> weights;  // of each measurement
  std::function<double(std::size_t, const Constants&)> predict;
  std::vector<std::string> fitted;  // names of constants that may move
};

struct FitOptions {
  int steps = 20;
  double spread = 0.25;  // of a constant round its prior, in logarithms
  double noise = 0.04;   // of a measurement
  Constants prior{};
};

// Starts at `start`; what may not move stays as it is there.
Constants fit(const FitProblem& problem, const Constants& start, const FitOptions& options);

}  // namespace optimus
