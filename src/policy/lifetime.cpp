// Implements lifetime.h.
#include "policy/lifetime.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace optimus {
namespace {

double probability_beyond(const Lifetime& lifetime, double seconds) {
  const double z = std::log(std::max(seconds, 1e-9) / lifetime.median) / lifetime.spread;
  return 0.5 * std::erfc(z / std::numbers::sqrt2);
}

}  // namespace

Lifetime usual_lifetime(Cause cause) {
  constexpr double kSpread = 1.5;
  const auto with_mean = [&](double mean) {
    return Lifetime{mean / std::exp(kSpread * kSpread / 2), kSpread};
  };
  switch (cause) {
    case Cause::device:
    case Cause::host:
      return with_mean(600);
    case Cause::link:
    case Cause::cluster:
      return with_mean(1440);
    case Cause::data_loading:
    case Cause::heavy_stage:
    case Cause::uneven_lengths:
    case Cause::memory:
      return {1, 1, true};
  }
  return {};
}

double expected_remaining_seconds(const Lifetime& lifetime, double age, double horizon) {
  if (lifetime.is_endless) return horizon;
  const double survival = probability_beyond(lifetime, age);
  if (survival < 1e-12) return horizon;  // older than any observed condition, so it is assumed to last
  // Integrates the probability that the condition still exists. The width of the steps grows with the age.
  double remainder = 0, offset = 0, width = std::max(1.0, age / 64);
  while (offset < horizon) {
    const double step = std::min(width, horizon - offset);
    remainder += step * probability_beyond(lifetime, age + offset + step / 2) / survival;
    offset += step, width *= 1.05;
  }
  return std::min(remainder, horizon);
}

double chance_to_end(const Lifetime& lifetime, double age) {
  if (lifetime.is_endless) return 0;
  const double survival = probability_beyond(lifetime, age);
  return survival < 1e-12 ? 0 : 1 - probability_beyond(lifetime, age + 1) / survival;
}

}  // namespace optimus
