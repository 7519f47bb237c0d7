// Console output of rank 0 besides the progress of steps: what runs, the expected speed, and the result.
#pragma once

#include "engine/parameters.h"
#include "run/train_rank.h"

namespace optimus {

// Prints the lines before the first step.
void print_run_summary(const RunSpec& spec, const RankContext& rank);
// Writes the export if requested, and generates a sample of text. `parameters` has all weights.
void export_and_sample(const RunSpec& spec, Parameters& parameters, const RankContext& rank,
                       TrainResult& result);
// A single-device plan, for work with all weights of a distributed model.
Plan one_device_plan(const TrainSettings& settings);

}  // namespace optimus
