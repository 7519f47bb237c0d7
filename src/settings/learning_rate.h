// The learning rate schedule.
#pragma once

#include <cstdint>

#include "settings/options.h"

namespace optimus {

struct LearningRate {
  LearningRateShape shape = LearningRateShape::cosine;
  double highest = 0, lowest = 0;
  std::int64_t warmup = 0, total = 0;  // steps
};

// `step` starts at 1. The rate increases linearly to the highest value at step `warmup`. It then decreases to
// the lowest value at step `total`: with `cosine` along a half cosine, with `linear` linearly, and with `wsd`
// only during the last fifth of all steps. With `constant` it stays at the highest value.
double learning_rate_at(const LearningRate& rate, std::int64_t step);

}  // namespace optimus
