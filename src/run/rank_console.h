// Console output of rank 0 in addition to the step progress: a summary of the run, the expected speed, and
// the result.
#pragma once

#include "engine/parameters.h"
#include "run/train_rank.h"

namespace optimus {

// Prints the lines before the first step.
void print_run_summary(const RunSpec& spec, const RankContext& rank);
// Exports the model if requested, and generates a sample of text. `parameters` must contain all weights.
void export_and_sample(const RunSpec& spec, Parameters& parameters, const RankContext& rank,
                       TrainResult& result);
// Returns a single-device plan, for using all weights of a distributed model on one device.
Plan one_device_plan(const TrainSettings& settings);

}  // namespace optimus
