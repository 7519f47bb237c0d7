// Residual factors of the cost model from a run's own steps: measured over predicted seconds of compute,
// memory, host and links. Four named constants, regularised towards 1; all other constants stay as fitted to
// published runs.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "simulate/simulate.h"

namespace optimus {

// Seconds of each step in a run's metrics.jsonl, from the last plan epoch only. An incomplete last line is
// skipped. Throws a UserError that names the line.
std::vector<double> step_seconds_of(std::string_view metrics, const std::string& source);

// The typical step: the median without the first steps, which warm up caches.
double typical_seconds(std::vector<double> steps);

struct MeasuredPlan {
  std::string name;  // display name of the run
  const StepSimulator* simulator = nullptr;
  double seconds = 0;  // of the typical step
  int num_steps = 0;
  bool has_links = false;  // more than one device
};

struct Refit {
  struct Row {
    std::string name;
    // seconds: measured, predicted with `start`, predicted with the refit
    double measured = 0, predicted_before = 0, predicted_after = 0;
    int num_steps = 0;
  };
  Constants constants;
  std::vector<std::string> fitted;  // names of the constants that were fitted
  std::vector<Row> rows;
};
Refit refit(std::span<const MeasuredPlan> plans, const Constants& start);

std::string text(const Refit& refit);
OrderedJson to_json(const Refit& refit);

}  // namespace optimus
