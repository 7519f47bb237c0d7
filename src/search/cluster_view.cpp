// Implements cluster_view.h: groups the present devices into sections.
#include "search/cluster_view.h"

#include <algorithm>

namespace optimus {

ClusterView::ClusterView(const Cluster& cluster) : cluster_(cluster), map_(DeviceMap::of_present(cluster)) {
  const HardwareProfile& profile = cluster.profile();
  std::vector<int> starts;  // [node group]: first physical device of the group
  int next = 0;
  for (const NodeGroup& group : profile.groups) starts.push_back(next), next += group.num_devices;
  int group = 0;
  for (int i = 0; i < map_.size(); ++i) {
    const Device device = map_[VirtualDevice{i}];
    while (group + 1 < std::ssize(starts) && device.value >= starts[static_cast<std::size_t>(group) + 1])
      ++group;
    const double speed = profile.speed_factors.empty() ? 1 : cluster.speed_of(device);
    // Consecutive devices are mostly equal, so the last section is compared before all kinds.
    if (!sections_.empty()) {
      const DeviceKind& previous_kind = kinds_[static_cast<std::size_t>(sections_.back().kind)];
      if (previous_kind.group == group && previous_kind.speed == speed) {
        ++sections_.back().end;
        continue;
      }
    }
    auto kind = std::find_if(kinds_.begin(), kinds_.end(), [&](const DeviceKind& known) {
      return known.group == group && known.speed == speed;
    });
    if (kind == kinds_.end()) {
      const DeviceType& type = cluster.type_of(device);
      const double effective_peak = std::max({type.peak.bf16, type.peak.fp16, type.peak.fp32}) * speed;
      kinds_.push_back({group, speed, Device{starts[static_cast<std::size_t>(group)]}, device, effective_peak,
                        type.memory});
      kind = kinds_.end() - 1;
    }
    sections_.push_back({i, i + 1, static_cast<int>(kind - kinds_.begin())});
  }
}

const NodeGroup& ClusterView::group_of(int kind) const {
  return cluster_.profile().groups[static_cast<std::size_t>(kinds_[static_cast<std::size_t>(kind)].group)];
}

const DeviceType& ClusterView::type_of(int kind) const {
  return cluster_.profile().types[static_cast<std::size_t>(group_of(kind).type)];
}

namespace {

// Calls visit(kind) for every section that intersects the range.
template <typename Visit>
void for_sections(const std::vector<Section>& sections, int begin, int end, Visit&& visit) {
  auto at = std::upper_bound(sections.begin(), sections.end(), begin,
                             [](int value, const Section& section) { return value < section.end; });
  for (; at != sections.end() && at->begin < end; ++at) visit(at->kind);
}

}  // namespace

int ClusterView::slowest(int begin, int end) const {
  if (is_uniform()) return 0;
  int slowest = -1;
  for_sections(sections_, begin, end, [&](int kind) {
    if (slowest < 0 || kinds_[static_cast<std::size_t>(kind)].effective_peak <
                           kinds_[static_cast<std::size_t>(slowest)].effective_peak)
      slowest = kind;
  });
  return std::max(slowest, 0);
}

Bytes ClusterView::min_memory(int begin, int end) const {
  Bytes smallest = kinds_.front().memory;
  bool is_first = true;
  if (is_uniform()) return smallest;
  for_sections(sections_, begin, end, [&](int kind) {
    const Bytes memory = kinds_[static_cast<std::size_t>(kind)].memory;
    if (is_first || memory < smallest) smallest = memory;
    is_first = false;
  });
  return smallest;
}

GroupShape ClusterView::spread(int kind, int count, int stride) const {
  GroupShape shape;
  shape.size = count;
  if (count < 2) return shape;
  const NodeGroup& group = group_of(kind);
  const auto num_spanned = [&](int size) {
    return stride >= size ? count
                          : static_cast<int>(static_cast<std::int64_t>(count - 1) * stride / size) + 1;
  };
  shape.domains = num_spanned(group.devices_per_domain), shape.nodes = num_spanned(group.devices_per_node);
  const Device first = kinds_[static_cast<std::size_t>(kind)].first_of_group;
  const auto link_to = [&](std::int64_t distance) {
    const std::int64_t last = std::min<std::int64_t>(first.value + distance, cluster_.num_devices() - 1);
    return cluster_.link(first, Device{static_cast<int>(last)});
  };
  if (stride < group.devices_per_domain) shape.intra_node = link_to(1);
  // Between domains of one node, a group may use both kinds of links. If the group spans several nodes, the
  // slower kind determines its speed.
  if (shape.domains > 1)
    shape.inter_node = link_to(shape.nodes > 1 ? std::max(group.devices_per_node, group.devices_per_domain)
                                               : group.devices_per_domain);
  return shape;
}

}  // namespace optimus
