// The learning rate of a step.
#pragma once

#include <cstdint>

#include "settings/options.h"

namespace optimus {

struct LearningRate {
  LearningRateShape shape = LearningRateShape::cosine;
  double highest = 0, lowest = 0;
  std::int64_t warmup = 0, total = 0;  // steps
};

// Step from 1. Grows linearly to the highest at step `warmup`, then falls to the lowest at step `total`: along a cosine, a line,
// or (wsd) only in the last fifth of all steps; constant stays.
double learning_rate_at(const LearningRate& rate, std::int64_t step);

}  // namespace optimus
