// See cluster.h.
#include "cluster/cluster.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {

Cluster::Cluster(HardwareProfile profile, const std::string& source) : profile_(std::move(profile)) {
  validate(profile_, source);
  starts_.reserve(profile_.groups.size());
  for (const NodeGroup& group : profile_.groups) {
    starts_.push_back({num_devices_, num_nodes_, num_domains_});
    num_devices_ += group.num_devices;
    num_nodes_ += group.num_nodes();
    num_domains_ += group.num_domains();
    const auto island = static_cast<std::size_t>(group.island);
    island_sizes_.resize(std::max(island_sizes_.size(), island + 1));
    island_sizes_[island] += group.num_devices;
  }
  island_links_ = profile_.island_links;
  std::sort(island_links_.begin(), island_links_.end(), [](const IslandLink& a, const IslandLink& b) {
    return std::pair(a.first, a.second) < std::pair(b.first, b.second);
  });
}

std::size_t Cluster::group_index(Device device) const {
  ensure(device.value >= 0 && device.value < num_devices_, "device {} is out of range for {} devices",
         device.value, num_devices_);
  const auto next_group =
      std::upper_bound(starts_.begin(), starts_.end(), device.value,
                       [](int value, const GroupStart& start) { return value < start.device; });
  return static_cast<std::size_t>(next_group - starts_.begin()) - 1;
}

bool Cluster::is_present(Device device) const {
  ensure(device.value >= 0 && device.value < num_devices_, "device {} is out of range for {} devices",
         device.value, num_devices_);
  const std::vector<int>& missing = profile_.missing_devices;
  return !std::binary_search(missing.begin(), missing.end(), device.value);
}

std::vector<Device> Cluster::present_devices() const {
  std::vector<Device> present;
  present.reserve(static_cast<std::size_t>(num_present()));
  auto missing = profile_.missing_devices.begin();
  for (int device = 0; device < num_devices_; ++device) {
    const bool is_missing = missing != profile_.missing_devices.end() && *missing == device;
    if (is_missing)
      ++missing;
    else
      present.push_back({device});
  }
  return present;
}

const NodeGroup& Cluster::group_of(Device device) const { return profile_.groups[group_index(device)]; }

const DeviceType& Cluster::type_of(Device device) const {
  return profile_.types[static_cast<std::size_t>(group_of(device).type)];
}

double Cluster::speed_of(Device device) const {
  const auto entry =
      std::lower_bound(profile_.speed_factors.begin(), profile_.speed_factors.end(), device.value,
                       [](const SpeedFactor& candidate, int value) { return candidate.device < value; });
  return entry != profile_.speed_factors.end() && entry->device == device.value ? entry->factor : 1;
}

int Cluster::node_of(Device device) const {
  const std::size_t group = group_index(device);
  return starts_[group].node +
         (device.value - starts_[group].device) / profile_.groups[group].devices_per_node;
}

int Cluster::domain_of(Device device) const {
  const std::size_t group = group_index(device);
  return starts_[group].domain +
         (device.value - starts_[group].device) / profile_.groups[group].devices_per_domain;
}

int Cluster::island_of(Device device) const { return group_of(device).island; }

namespace {

Link make_link(LinkClass kind, const LinkSpec& spec) {
  return {kind, spec.bytes_per_second, spec.bytes_per_second, spec.latency, &spec.efficiency};
}

// The network bandwidth of one device while all devices on its node send.
double bandwidth_share(const NodeGroup& group) {
  return group.network.nic.bytes_per_second * group.network.nics_per_node / group.devices_per_node;
}

}  // namespace

Link Cluster::link(Device from, Device to) const {
  const NodeGroup& from_group = group_of(from);
  const NodeGroup& to_group = group_of(to);
  if (from == to) {
    const double memory = type_of(from).memory_bytes_per_second;
    return {LinkClass::same_device, memory, memory, Seconds(0), nullptr};
  }
  if (domain_of(from) == domain_of(to)) return make_link(LinkClass::domain, from_group.domain_link);
  if (node_of(from) == node_of(to)) return make_link(LinkClass::node, from_group.node_link);
  return from_group.island == to_group.island ? network_link(from_group, to_group)
                                              : island_link(from_group, to_group);
}

Link Cluster::network_link(const NodeGroup& from, const NodeGroup& to) const {
  // A device that sends alone uses one NIC, or several if its node has more NICs than devices.
  const auto single_device_bandwidth = [](const NodeGroup& group) {
    return std::max(group.network.nic.bytes_per_second, bandwidth_share(group));
  };
  const NodeGroup& slower = single_device_bandwidth(from) <= single_device_bandwidth(to) ? from : to;
  const double oversubscription = std::max(from.network.oversubscription, to.network.oversubscription);
  return {LinkClass::network, single_device_bandwidth(slower),
          std::min(bandwidth_share(from), bandwidth_share(to)) / oversubscription,
          std::max(from.network.nic.latency, to.network.nic.latency), &slower.network.nic.efficiency};
}

Link Cluster::island_link(const NodeGroup& from, const NodeGroup& to) const {
  const auto [first, second] = std::minmax(from.island, to.island);
  const auto island = std::lower_bound(island_links_.begin(), island_links_.end(), std::pair(first, second),
                                       [](const IslandLink& link, const std::pair<int, int>& pair) {
                                         return std::pair(link.first, link.second) < pair;
                                       });
  Link link = network_link(from, to);
  const int senders = std::min(island_sizes_[static_cast<std::size_t>(first)],
                               island_sizes_[static_cast<std::size_t>(second)]);
  link.kind = LinkClass::islands;
  link.bytes_per_second = std::min(link.bytes_per_second, island->bytes_per_second);
  link.shared_bytes_per_second = std::min(link.shared_bytes_per_second, island->bytes_per_second / senders);
  link.latency = std::max(link.latency, island->latency);
  return link;
}

std::optional<double> receive_bytes_per_second(const Cluster& cluster, int devices) {
  const Device first{0};
  for (int i = cluster.num_devices() - 1; i > 0; --i)
    if (const Device peer{i}; cluster.island_of(peer) == cluster.island_of(first) &&
                              cluster.node_of(peer) != cluster.node_of(first))
      return devices * cluster.link(first, peer).shared_bytes_per_second;
  return std::nullopt;
}

std::string text(LinkClass kind) {
  switch (kind) {
    case LinkClass::same_device:
      return "same device";
    case LinkClass::domain:
      return "domain";
    case LinkClass::node:
      return "node";
    case LinkClass::network:
      return "network";
    case LinkClass::islands:
      return "islands";
  }
  return "";
}

}  // namespace optimus
