// The simulated times of a step, as StepSimulator computes them.
#pragma once

#include <vector>

#include "simulate/pipeline.h"

namespace optimus {

struct StepTimes {
  std::vector<StageTimes> stages;  // [stage class]
  std::vector<PipelineTimes> pipelines;
  double gate = 0, end = 0;  // when all gradients are available; when the last update is complete
};

}  // namespace optimus
