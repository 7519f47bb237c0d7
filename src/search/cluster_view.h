// ClusterView: the planner's view of the cluster, in which the present devices are grouped into sections of
// equal devices. A stage is a range of these devices. Queries about stages take time proportional to the
// number of sections, not of devices.
#pragma once

#include <vector>

#include "cluster/device_map.h"
#include "cost/link_cost.h"

namespace optimus {

// A kind of device: all devices of one node group that have the same speed.
struct DeviceKind {
  int group = 0;  // index into the profile's groups
  double speed = 1;
  Device first_of_group;      // first device of the node group, at the start of a domain
  Device example;             // one device of this kind
  double effective_peak = 0;  // peak rate x speed; the slowest device of a stage has the smallest value
  Bytes memory;
};

struct Section {
  int begin = 0, end = 0;  // virtual devices
  int kind = 0;
};

class ClusterView {
 public:
  // The cluster must outlive this object.
  explicit ClusterView(const Cluster& cluster);

  const Cluster& cluster() const { return cluster_; }
  const DeviceMap& map() const { return map_; }
  int num_devices() const { return map_.size(); }
  const std::vector<DeviceKind>& kinds() const { return kinds_; }
  const std::vector<Section>& sections() const { return sections_; }
  bool is_uniform() const { return kinds_.size() == 1; }
  const DeviceType& type_of(int kind) const;
  const NodeGroup& group_of(int kind) const;

  // slowest() returns the slowest kind of device in [begin, end). min_memory() returns the smallest memory of
  // these devices.
  int slowest(int begin, int end) const;
  Bytes min_memory(int begin, int end) const;
  // The most favorable shape of a group of `count` devices at distances of `stride`, in which the group
  // starts at the start of a domain.
  GroupShape spread(int kind, int count, int stride) const;

 private:
  const Cluster& cluster_;
  DeviceMap map_;
  std::vector<DeviceKind> kinds_;
  std::vector<Section> sections_;
};

}  // namespace optimus
