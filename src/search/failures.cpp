// See failures.h.
#include "search/failures.h"

#include "plan/layouts.h"

namespace optimus {

double failure_slowdown(const Failures& failures, int num_devices, bool survives_device_loss) {
  if (failures.mtbf.value <= 0) return 1;
  const double seconds_per_failure = survives_device_loss
                                         ? failures.recovery.value
                                         : failures.checkpoint_every.value / 2 + failures.restart.value;
  return 1 + num_devices / failures.mtbf.value * seconds_per_failure;
}

bool survives_device_loss(const Plan& plan) { return smallest_owner_set(plan).size() > 1; }

bool survives_device_loss(const Candidate& c) { return c.copy_distance > 0 || num_shards(c) < c.dp * c.cp; }

double objective_weight(const Demand& demand, const DeviceMap& map, const Plan& plan) {
  const int devices = num_devices(plan);
  const double rate = cost_rate(demand, map, devices);
  if (demand.failures.mtbf.value <= 0) return rate;
  return rate * failure_slowdown(demand.failures, devices, survives_device_loss(plan));
}

double objective_weight(const Demand& demand, const DeviceMap& map, const Candidate& c) {
  return cost_rate(demand, map, c.num_devices()) *
         failure_slowdown(demand.failures, c.num_devices(), survives_device_loss(c));
}

}  // namespace optimus
