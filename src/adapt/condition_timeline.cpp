// Implements condition_timeline.h: random timelines.
#include "adapt/condition_timeline.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/random.h"
#include "policy/lifetime.h"

namespace optimus {

ConditionTimeline random_timeline(const Cluster& cluster, double length, const ConditionRates& rates,
                                  std::uint64_t seed) {
  const RandomKey key = RandomKey(seed).derive("time line");
  std::uint64_t num_drawn = 0;
  const auto uniform = [&] { return random_uniform(key, num_drawn++); };
  ConditionTimeline timeline{length, {}};
  const auto add_conditions = [&](Cause cause, int num_locations, double per_hour, double minimum,
                                  double maximum) {
    const double rate = per_hour * num_locations / 3600;
    for (double at = -std::log(1 - uniform()) / rate; at < length; at += -std::log(1 - uniform()) / rate) {
      const Lifetime lifetime = usual_lifetime(cause);
      const double radius = std::sqrt(-2 * std::log(1 - uniform()));
      const double normal = radius * std::cos(2 * std::numbers::pi * uniform());
      const double factor = minimum * std::pow(maximum / minimum, uniform());
      const int location = static_cast<int>(uniform() * num_locations);
      timeline.conditions.push_back(
          {{cause, location, factor}, at, lifetime.median * std::exp(lifetime.spread * normal)});
    }
  };
  add_conditions(Cause::device, cluster.num_devices(), rates.device_per_hour, 1.1, 5);
  add_conditions(Cause::host, cluster.num_nodes(), rates.host_per_hour, 1.1, 2);
  add_conditions(Cause::link, cluster.num_nodes(), rates.link_per_hour, 1.15, 3);
  std::sort(timeline.conditions.begin(), timeline.conditions.end(),
            [](const TimedCondition& a, const TimedCondition& b) { return a.begin < b.begin; });
  // Outages in InfiniteHBD's trace last 33 h in the median, and the standard deviation of the logarithm is 2
  // (environment_traces.cpp).
  constexpr double kRepair = 33 * 3600, kRepairSpread = 2, kLongestOutage = 1e8;
  const double losses = rates.loss_per_hour * cluster.num_nodes() / 3600;
  for (double at = losses > 0 ? -std::log(1 - uniform()) / losses : length; at < length;
       at += -std::log(1 - uniform()) / losses) {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    const double normal = radius * std::cos(2 * std::numbers::pi * uniform());
    timeline.losses.push_back({static_cast<int>(uniform() * cluster.num_nodes()), at,
                               std::min(kLongestOutage, kRepair * std::exp(kRepairSpread * normal))});
  }
  return timeline;
}

}  // namespace optimus
