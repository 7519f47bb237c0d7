// Implements learning_rate.h.
#include "settings/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace optimus {

double learning_rate_at(const LearningRate& rate, std::int64_t step) {
  if (step < rate.warmup) return rate.highest * static_cast<double>(step) / static_cast<double>(rate.warmup);
  const auto progress = [&](std::int64_t begin) {  // 0 at `begin`, 1 at the end
    if (rate.total <= begin) return 1.0;
    return std::clamp(static_cast<double>(step - begin) / static_cast<double>(rate.total - begin), 0.0, 1.0);
  };
  double fraction = 1;  // position between the lowest rate (0) and the highest (1)
  switch (rate.shape) {
    case LearningRateShape::cosine:
      fraction = 0.5 * (1 + std::cos(std::numbers::pi * progress(rate.warmup)));
      break;
    case LearningRateShape::linear:
      fraction = 1 - progress(rate.warmup);
      break;
    case LearningRateShape::wsd:
      fraction = 1 - progress(std::max(rate.warmup, rate.total - rate.total / 5));
      break;
    case LearningRateShape::constant:
      break;
  }
  return rate.lowest + (rate.highest - rate.lowest) * fraction;
}

}  // namespace optimus
