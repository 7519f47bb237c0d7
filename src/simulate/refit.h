// The residual of the cost model from runs' own steps: what their metrics say the seconds of compute, memory, host and links are,
// of the predicted ones. Four named constants, held near 1 where steps tell nothing of them; everything else stays as fitted on
// published runs.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "simulate/simulate.h"

namespace optimus {

// Seconds of each step in a run's metrics.jsonl, of the last plan epoch alone. A last line that was cut off is left out. Throws
// UserError that names the line.
std::vector<double> step_seconds_of(std::string_view metrics, const std::string& source);

// The usual step: the median, without the first few, which warm caches up.
double usual_seconds(std::vector<double> steps);

struct MeasuredPlan {
  std::string name;  // of the run, for people
  const StepSimulator* simulator = nullptr;
  double seconds = 0;  // of the usual step
  int num_steps = 0;
  bool has_links = false;  // more than one device
};

struct Refit {
  struct Row {
    std::string name;
    double measured = 0, before = 0, after = 0;  // seconds: measured, predicted with `start`, predicted now
    int num_steps = 0;
  };
  Constants constants;
  std::vector<std::string> fitted;  // names of the constants that could move
  std::vector<Row> rows;
};
Refit refit(std::span<const MeasuredPlan> plans, const Constants& start);

std::string text(const Refit& refit);
OrderedJson to_json(const Refit& refit);

}  // namespace optimus
