// Implements sizing.h. More devices help until the batch cannot be split further, so doubling finds a range
// and bisection the number.
#include "search/sizing.h"

#include <algorithm>

namespace optimus {

Cluster with_devices(const Cluster& cluster, int num_devices) {
  HardwareProfile profile = cluster.profile();
  profile.groups.resize(1);
  NodeGroup& group = profile.groups.front();
  group.num_devices = num_devices, group.island = 0;
  profile.types = {profile.types[static_cast<std::size_t>(group.type)]};
  group.type = 0;
  profile.island_links.clear(), profile.speed_factors.clear(), profile.missing_devices.clear();
  return Cluster(std::move(profile));
}

bool is_possible(const Demand& demand, const Ground& ground) {
  Bounder bounder(demand, ground);
  return !search_grid(demand, ground, bounder, {.most_simulations = 1}).judged.empty();
}

namespace {

Demand on(const Demand& demand, const Cluster& cluster) {
  Demand other{demand.model, cluster, demand.software, demand.constants};
  other.batch = demand.batch, other.sequence_length = demand.sequence_length,
  other.precision = demand.precision;
  other.constraints = demand.constraints;
  return other;
}

// The smallest number of nodes above too_few for which works(nodes) holds; 0 if there is none up to `most`.
template <typename Works>
int fewest_nodes(int too_few, int most, Works&& works) {
  int enough = std::max(1, too_few * 2);
  while (!works(std::min(enough, most))) {
    if (enough >= most) return 0;
    too_few = enough, enough *= 2;
  }
  enough = std::min(enough, most);
  while (enough - too_few > 1) {
    const int middle = too_few + (enough - too_few) / 2;
    (works(middle) ? enough : too_few) = middle;
  }
  return enough;
}

// No plan can use more devices than one for each sequence, layer and tensor part.
int most_nodes(const Demand& demand, int per_node) {
  const double most = static_cast<double>(demand.batch) * static_cast<double>(demand.model.layers) * 64;
  return std::max(1, static_cast<int>(std::min(most, static_cast<double>(kMostDevices)) / per_node));
}

}  // namespace

int devices_to_fit(const Demand& demand) {
  const int per_node = demand.cluster.profile().groups.front().devices_per_node;
  const int have = demand.cluster.num_present() / per_node;
  // Beyond this size the state is a small part of a device's memory.
  const int most = std::min(most_nodes(demand, per_node), std::max(16, have) * 256);
  if (have >= most) return 0;
  return per_node * fewest_nodes(have, most, [&](int nodes) {
           const Cluster cluster = with_devices(demand.cluster, nodes * per_node);
           return is_possible(on(demand, cluster), Ground(cluster));
         });
}

Sizing devices_to_finish(const Demand& demand, double step_seconds) {
  const int per_node = demand.cluster.profile().groups.front().devices_per_node;
  Sizing sizing;
  int tries_without_gain = 0;
  const auto works = [&](int nodes) {
    // Doubling the devices did not help: the batch cannot be split further.
    if (tries_without_gain >= 1 && sizing.num_devices == 0) return false;
    const Cluster cluster = with_devices(demand.cluster, nodes * per_node);
    const Ground ground(cluster);
    const Demand larger = on(demand, cluster);
    Bounder bounder(larger, ground);
    const GridResult grid = search_grid(larger, ground, bounder, {.most_simulations = 8});
    if (grid.judged.empty()) return false;
    const double seconds = grid.judged.front().seconds;
    tries_without_gain =
        sizing.least_seconds == 0 || seconds < 0.97 * sizing.least_seconds ? 0 : tries_without_gain + 1;
    if (sizing.least_seconds == 0 || seconds < sizing.least_seconds)
      sizing.least_seconds = seconds, sizing.most = nodes * per_node;
    if (seconds > step_seconds) return false;
    sizing.seconds = seconds, sizing.num_devices = nodes * per_node;
    return true;
  };
  const int most = std::min(most_nodes(demand, per_node), 125'000);
  if (fewest_nodes(0, most, works) == 0) sizing.num_devices = 0;
  return sizing;
}

}  // namespace optimus
