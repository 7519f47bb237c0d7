// The times of everything in a step, as StepSimulator computes them.
#pragma once

#include <vector>

#include "simulate/pipeline.h"

namespace optimus {

struct StepTimes {
  std::vector<StageTimes> stages;  // [class]
  std::vector<PipelineTimes> pipelines;
  double gate = 0, end = 0;  // when all gradients are available; when the last update is complete
};

}  // namespace optimus
