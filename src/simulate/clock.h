// The times of everything in a step, as computed by StepSimulator. Used only by simulate.cpp and trace.cpp.
#pragma once

#include "simulate/simulate.h"

namespace optimus {

struct StepSimulator::Clock {
  std::vector<StageTimes> stages;  // [class]
  std::vector<PipelineTimes> pipelines;
  double gate = 0, end = 0;  // when all gradients are available; when the last update is complete
};

}  // namespace optimus
