// Fits the residual factors of the cost model to the user's own runs: the ratios of measured to predicted
// seconds of compute, memory traffic, host and links. These four constants are regularized towards their
// initial values. All other constants keep the values fitted to published runs.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "simulate/simulate.h"

namespace optimus {

// The seconds of each step in a run's metrics.jsonl, from the last plan epoch only. An incomplete last line
// is skipped. Throws a UserError that names the line.
std::vector<double> step_seconds_of(std::string_view metrics, const std::string& source);

// The typical seconds per step: the median over all steps except the first ones, in which caches warm up.
double typical_seconds(std::vector<double> steps);

struct MeasuredPlan {
  std::string name;  // display name of the run
  const StepSimulator* simulator = nullptr;
  double seconds = 0;  // typical seconds per step
  int num_steps = 0;
  bool has_links = false;  // whether the plan uses more than one device
};

struct Refit {
  struct Row {
    std::string name;
    // Seconds per step: measured, predicted with the initial constants, and predicted with the fitted
    // constants.
    double measured = 0, predicted_before = 0, predicted_after = 0;
    int num_steps = 0;
  };
  Constants constants;
  std::vector<std::string> constant_names;  // names of the constants that were fitted
  std::vector<Row> rows;
};
Refit refit(std::span<const MeasuredPlan> plans, const Constants& start);

std::string text(const Refit& refit);
OrderedJson to_json(const Refit& refit);

}  // namespace optimus
