// Implements sizing.h. More devices help until the batch cannot be split further, so doubling finds a range
// that contains the smallest sufficient number, and bisection finds the number.
#include "search/sizing.h"

#include <algorithm>

#include "search/grid.h"

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

bool is_possible(const Demand& demand, const ClusterView& cluster_view) {
  BoundModel bound_model(demand, cluster_view);
  return !search_grid(demand, cluster_view, bound_model, {.max_simulations = 1}).evaluated.empty();
}

namespace {

Demand demand_on_cluster(const Demand& demand, const Cluster& cluster) {
  Demand result{demand.model, cluster, demand.software, demand.constants};
  result.batch = demand.batch, result.sequence_length = demand.sequence_length,
  result.precision = demand.precision;
  result.constraints = demand.constraints;
  return result;
}

// The smallest number of nodes above `insufficient` for which works(nodes) is true, or 0 if there is none up
// to `max_nodes_tried`.
template <typename Works>
int fewest_nodes(int insufficient, int max_nodes_tried, Works&& works) {
  int sufficient = std::max(1, insufficient * 2);
  while (!works(std::min(sufficient, max_nodes_tried))) {
    if (sufficient >= max_nodes_tried) return 0;
    insufficient = sufficient, sufficient *= 2;
  }
  sufficient = std::min(sufficient, max_nodes_tried);
  while (sufficient - insufficient > 1) {
    const int middle = insufficient + (sufficient - insufficient) / 2;
    (works(middle) ? sufficient : insufficient) = middle;
  }
  return sufficient;
}

// A plan can use at most one device for each combination of sequence, layer and tensor-parallel rank.
int max_nodes(const Demand& demand, int per_node) {
  const double upper_bound =
      static_cast<double>(demand.batch) * static_cast<double>(demand.model.layers) * 64;
  return std::max(1, static_cast<int>(std::min(upper_bound, static_cast<double>(kMaxDevices)) / per_node));
}

}  // namespace

int devices_to_fit(const Demand& demand) {
  const int per_node = demand.cluster.profile().groups.front().devices_per_node;
  const int num_present_nodes = demand.cluster.num_present() / per_node;
  // Beyond this size, the state is only a small part of a device's memory.
  const int upper_bound = std::min(max_nodes(demand, per_node), std::max(16, num_present_nodes) * 256);
  if (num_present_nodes >= upper_bound) return 0;
  return per_node * fewest_nodes(num_present_nodes, upper_bound, [&](int nodes) {
           const Cluster cluster = with_devices(demand.cluster, nodes * per_node);
           return is_possible(demand_on_cluster(demand, cluster), ClusterView(cluster));
         });
}

Sizing devices_to_finish(const Demand& demand, double step_seconds) {
  const int per_node = demand.cluster.profile().groups.front().devices_per_node;
  Sizing sizing;
  int tries_without_gain = 0;
  const auto is_fast_enough = [&](int nodes) {
    // Doubling the devices did not help, so the batch cannot be split further.
    if (tries_without_gain >= 1 && sizing.num_devices == 0) return false;
    const Cluster cluster = with_devices(demand.cluster, nodes * per_node);
    const ClusterView cluster_view(cluster);
    const Demand larger_demand = demand_on_cluster(demand, cluster);
    BoundModel bound_model(larger_demand, cluster_view);
    const GridResult grid = search_grid(larger_demand, cluster_view, bound_model, {.max_simulations = 8});
    if (grid.evaluated.empty()) return false;
    const double seconds = grid.evaluated.front().seconds;
    tries_without_gain =
        sizing.min_seconds == 0 || seconds < 0.97 * sizing.min_seconds ? 0 : tries_without_gain + 1;
    if (sizing.min_seconds == 0 || seconds < sizing.min_seconds)
      sizing.min_seconds = seconds, sizing.fastest_num_devices = nodes * per_node;
    if (seconds > step_seconds) return false;
    sizing.seconds = seconds, sizing.num_devices = nodes * per_node;
    return true;
  };
  const int upper_bound = std::min(max_nodes(demand, per_node), 125'000);
  if (fewest_nodes(0, upper_bound, is_fast_enough) == 0) sizing.num_devices = 0;
  return sizing;
}

}  // namespace optimus
