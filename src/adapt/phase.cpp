// Implements phase.h.
#include "adapt/phase.h"

#include <algorithm>
#include <cmath>

namespace optimus {

void LossPlateau::observe(double loss) {
  if (!std::isfinite(loss)) return;
  losses_.push_back(loss);
  if (std::ssize(losses_) > window_) losses_.pop_front();
}

bool LossPlateau::has_stopped(double part) const {
  if (std::ssize(losses_) < window_) return false;
  const auto n = static_cast<double>(losses_.size());
  double mean = 0, xx = 0, xy = 0, squared_residuals = 0;
  for (const double loss : losses_) mean += loss / n;
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    const double x = static_cast<double>(i) - (n - 1) / 2;
    xx += x * x, xy += x * (losses_[i] - mean);
  }
  const double slope = xy / xx;
  for (std::size_t i = 0; i < losses_.size(); ++i) {
    const double x = static_cast<double>(i) - (n - 1) / 2, error = losses_[i] - mean - slope * x;
    squared_residuals += error * error;
  }
  return (slope - 2 * std::sqrt(squared_residuals / (n - 2) / xx)) * n > -part * std::abs(mean);
}

void LengthMix::observe(const LengthSum& lengths) {
  if (lengths.sequences == 0 || lengths.tokens == 0) return;
  const auto sequences = static_cast<double>(lengths.sequences), tokens = static_cast<double>(lengths.tokens);
  const double ratio = lengths.squares * sequences / (tokens * tokens);
  constexpr int kFirstSteps = 20;
  if (steps_ < kFirstSteps) first_ratio_ += ratio / kFirstSteps;
  recent_ratio_ =
      steps_ == 0 ? ratio : recent_ratio_ + (ratio - recent_ratio_) / std::min(steps_ + 1, kFirstSteps);
  ++steps_;
}

double LengthMix::change() const {
  return steps_ < 20 || first_ratio_ <= 0 ? 1 : recent_ratio_ / first_ratio_;
}

}  // namespace optimus
