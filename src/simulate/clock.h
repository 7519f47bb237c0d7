// When everything of a step happens, as StepSimulator works it out; for simulate.cpp and trace.cpp alone.
#pragma once

#include "simulate/simulate.h"

namespace optimus {

struct StepSimulator::Clock {
  std::vector<StageTimes> stages;  // [class]
  std::vector<PipelineTimes> pipelines;
  double gate = 0, end = 0;  // when all gradients are there; when the last update is done
};

}  // namespace optimus
