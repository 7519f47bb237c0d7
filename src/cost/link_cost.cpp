// See link_cost.h.
#include "cost/link_cost.h"

#include <algorithm>
#include <cmath>

namespace optimus {
namespace {

bool is_slower(const Link& a, const Link& b) {
  return b.kind == LinkClass::same_device || a.shared_bytes_per_second < b.shared_bytes_per_second;
}

}  // namespace

// The members of almost every group are in ascending order, so a new domain or node is counted at each
// change. Links are evaluated only at changes, which keeps the cost low for groups of 100,000 devices.
GroupShape shape_of(std::span<const int> members, const Cluster& cluster, const DeviceMap& map) {
  GroupShape shape;
  shape.size = static_cast<int>(members.size());
  if (members.size() < 2) return shape;
  const auto physical = [&](std::size_t i) { return map[VirtualDevice{members[i]}]; };
  Device previous_device = physical(0);
  const Device first = previous_device;
  int domain = cluster.domain_of(previous_device), node = cluster.node_of(previous_device);
  const auto record_link = [&](const Link& link) {
    Link& slowest = link.kind == LinkClass::domain ? shape.intra_node : shape.inter_node;
    if (is_slower(link, slowest)) slowest = link;
  };
  for (std::size_t i = 1; i < members.size(); ++i) {
    const Device device = physical(i);
    const int next_domain = cluster.domain_of(device), next_node = cluster.node_of(device);
    const bool is_new_kind = next_domain != domain || shape.intra_node.kind == LinkClass::same_device;
    if (is_new_kind) record_link(cluster.link(previous_device, device));
    shape.domains += next_domain != domain, shape.nodes += next_node != node;
    previous_device = device, domain = next_domain, node = next_node;
  }
  if (shape.domains > 1) record_link(cluster.link(previous_device, first));
  return shape;
}

GroupShape shape_of_all(int num_devices, const Cluster& cluster) {
  GroupShape shape;
  const NodeGroup& group = cluster.profile().groups.front();
  shape.size = num_devices;
  shape.domains = std::max(1, (num_devices + group.devices_per_domain - 1) / group.devices_per_domain);
  shape.nodes = std::max(1, (num_devices + group.devices_per_node - 1) / group.devices_per_node);
  if (num_devices > 1 && group.devices_per_domain > 1) shape.intra_node = cluster.link({0}, {1});
  if (shape.domains > 1)
    shape.inter_node = cluster.link({0}, {std::min(num_devices, cluster.num_devices()) - 1});
  return shape;
}

double LinkCost::bandwidth(const Link& link, double bytes, int nodes) const {
  const double curve = link.efficiency_of(Bytes(static_cast<std::int64_t>(bytes)));
  if (link.kind == LinkClass::domain)
    return link.shared_bytes_per_second * std::min(1.0, curve * constants_.domain_speed);
  const double contention = 1 + constants_.network_contention * std::log2(std::max(1, nodes));
  const double typical =
      link.shared_bytes_per_second * std::min(1.0, curve * constants_.network_speed) / contention;
  if (link.kind != LinkClass::network) return typical;
  // Slow networks do not have the protocol and bus losses of fast networks, because any CPU can sustain this
  // rate in bytes per second.
  constexpr double kSustainedBandwidth = 0.5e9;
  const double sustained_fraction =
      std::min(1.0, kSustainedBandwidth / link.bytes_per_second) * std::min(1.0, curve);
  return std::max(typical, link.shared_bytes_per_second * sustained_fraction);
}

double LinkCost::latency(const Link& link) const {
  if (link.kind == LinkClass::same_device) return 0;
  return link.latency.value *
         (link.kind == LinkClass::domain ? constants_.domain_latency : constants_.network_latency);
}

double LinkCost::collective_seconds(Collective kind, const GroupShape& group, double bytes) const {
  if (group.size <= 1 || bytes <= 0) return 0;
  const double residual = constants_.link_residual * (group.nodes > 1 ? constants_.ring_residual : 1);
  return uncorrected_seconds(kind, group, bytes) * residual;
}

double LinkCost::uncorrected_seconds(Collective kind, const GroupShape& group, double bytes) const {
  const int n = group.size, domains = group.domains;
  const double intra_bandwidth = group.intra_node.kind == LinkClass::same_device
                                     ? 0
                                     : bandwidth(group.intra_node, bytes / n * std::min(n, 8), 1);
  const double inter_bandwidth = domains == 1 && group.inter_node.kind == LinkClass::same_device
                                     ? 0
                                     : bandwidth(group.inter_node, bytes / n * std::min(n, 8), group.nodes);
  if (kind == Collective::ring_step)
    return std::max(intra_bandwidth > 0 ? bytes / intra_bandwidth : 0.0,
                    inter_bandwidth > 0 ? bytes / inter_bandwidth : 0.0) +
           std::max(latency(group.intra_node), latency(group.inter_node));
  // Each device of the group in a domain contributes a network link.
  const double per_domain = static_cast<double>(n) / domains;
  double ring_bandwidth = intra_bandwidth;
  if (inter_bandwidth > 0)
    ring_bandwidth = intra_bandwidth > 0 ? std::min(intra_bandwidth, inter_bandwidth * per_domain)
                                         : inter_bandwidth * per_domain;
  const double ring_latency = latency(group.intra_node) * (n - domains) +
                              latency(group.inter_node) * std::max(0, domains - (domains == 1));
  const double one_pass = bytes * (n - 1) / n / ring_bandwidth + ring_latency;
  if (kind != Collective::all_reduce) return one_pass;
  const double tree_latency = 2 * (latency(group.intra_node) * std::log2(std::max(1.0, per_domain)) +
                                   latency(group.inter_node) * std::ceil(std::log2(domains)));
  return std::min(2 * one_pass, 2 * bytes * (n - 1) / n / (0.9 * ring_bandwidth) + tree_latency);
}

double LinkCost::exchange_seconds(const GroupShape& group, double bytes, double copies) const {
  if (group.size <= 1 || bytes <= 0) return 0;
  const double n = group.size, domains = group.domains, per_domain = n / domains;
  // The expected number of other domains that contain at least one of the `copies` experts of a token, if
  // experts are placed at random.
  const double other_domains = (domains - 1) * (1 - std::pow(1 - 1 / domains, copies));
  const double intra_bytes = bytes * (per_domain - 1) / per_domain,
               inter_bytes = bytes / copies * other_domains;
  // As in rings, messages to several peers are in flight at the same time.
  const double size = bytes / n * std::min(n, 8.0);
  const bool has_intra = group.intra_node.kind != LinkClass::same_device,
             has_inter = group.inter_node.kind != LinkClass::same_device;
  const double intra_seconds =
      intra_bytes > 0 && has_intra ? intra_bytes / bandwidth(group.intra_node, size, 1) : 0;
  const double inter_seconds =
      inter_bytes > 0 && has_inter ? inter_bytes / bandwidth(group.inter_node, size, group.nodes) : 0;
  return (std::max(intra_seconds, inter_seconds) +
          std::max(latency(group.intra_node), latency(group.inter_node))) *
         constants_.link_residual;
}

double LinkCost::message_seconds(const Link& link, double bytes) const {
  if (link.kind == LinkClass::same_device) return 0;
  return (bytes / bandwidth(link, bytes, 1) + latency(link)) * constants_.link_residual;
}

}  // namespace optimus
