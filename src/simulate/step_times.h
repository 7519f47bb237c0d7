// The simulated times of a step, as computed by StepSimulator.
#pragma once

#include <vector>

#include "simulate/pipeline.h"

namespace optimus {

struct StepTimes {
  std::vector<StageTimes> stages;  // [stage class]
  std::vector<PipelineTimes> pipelines;
  double gate = 0, end = 0;  // times at which all gradients are available and the last update is complete
};

}  // namespace optimus
