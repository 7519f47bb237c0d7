// See failures.h.
#include "search/failures.h"

#include "plan/layouts.h"
#include "search/bound.h"

namespace optimus {

double stretch_of(const Failures& failures, int num_devices, bool keeps_state) {
  if (failures.mtbf.value <= 0) return 1;
  const double lost =
      keeps_state ? failures.recovery.value : failures.checkpoint_every.value / 2 + failures.restart.value;
  return 1 + num_devices / failures.mtbf.value * lost;
}

bool keeps_state(const Plan& plan) { return fewest_holders(plan).size() > 1; }

bool keeps_state(const Candidate& c) { return c.buddy > 0 || num_shards(c) < c.dp * c.cp; }

double weight_of(const Demand& demand, const DeviceMap& map, const Plan& plan) {
  const int devices = num_devices(plan);
  const double rate = rate_of(demand, map, devices);
  if (demand.failures.mtbf.value <= 0) return rate;
  return rate * stretch_of(demand.failures, devices, keeps_state(plan));
}

double weight_of(const Demand& demand, const DeviceMap& map, const Candidate& c) {
  return rate_of(demand, map, c.num_devices()) * stretch_of(demand.failures, c.num_devices(), keeps_state(c));
}

int buddy_distance(int num_shards, int stride, int per_node) {
  const int in_node = std::max(1, per_node / stride);
  return in_node < num_shards ? in_node : 1;
}

}  // namespace optimus
