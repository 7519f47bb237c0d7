// What rank 0 tells people beside the steps: what runs, what to expect of it, and what was learned.
#pragma once

#include "engine/parameters.h"
#include "run/train_rank.h"

namespace optimus {

// The lines before the first step.
void say_what_runs(const TrainSettings& settings, const RankPart& part);
// The export that was asked for, and a sample of text. parameters: all weights.
void show_what_was_learned(const TrainSettings& settings, const TrainOptions& options, Parameters& parameters,
                           const RankPart& part, TrainResult& result);
// For what one device does with the weights of many.
Plan one_device_plan(const TrainSettings& settings);

}  // namespace optimus
