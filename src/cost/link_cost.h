// Seconds of communication: messages between two devices and collectives over a group, from the links that
// connect the devices.
//
// A collective is a ring through the group's devices, domain by domain. It is limited by the slowest link and
// by the number of links that the group uses concurrently (a group with k devices in each domain uses k
// network links per domain). Small reductions use a tree if it is faster.
//
// In a token exchange each device sends different tokens to every other device. A token for several experts
// in another domain is sent there once and copied inside that domain (on the way back, summed there and
// sent once). Traffic inside domains and traffic between domains overlap.
#pragma once

#include <span>

#include "cluster/device_map.h"
#include "cost/constants.h"

namespace optimus {

enum class Collective { gather, reduce_scatter, all_reduce, ring_step };

// The placement of a group on the cluster: its number of devices, and of domains and nodes that it spans.
struct GroupShape {
  int size = 1, domains = 1, nodes = 1;
  // The slowest link inside a domain, and the slowest link between domains. Kind same_device if there is
  // none.
  Link intra_node, inter_node;
};
GroupShape shape_of(std::span<const int> members, const Cluster& cluster, const DeviceMap& map);
// The shape of the first `num_devices` devices of the cluster, computed without visiting each device.
GroupShape shape_of_all(int num_devices, const Cluster& cluster);

class LinkCost {
 public:
  explicit LinkCost(const Constants& constants) : constants_(constants) {}
  // Seconds of a collective. `bytes`: size of the whole tensor on one device (output of a gather, input of
  // a reduction); for ring_step, the bytes that one device sends to the next.
  double collective_seconds(Collective kind, const GroupShape& group, double bytes) const;
  double message_seconds(const Link& link, double bytes) const;
  // Seconds to send tokens to their experts, or back. `bytes`: size of one device's tokens, each counted
  // once for each of its `copies` experts, which may be anywhere in the group.
  double exchange_seconds(const GroupShape& group, double bytes, double copies) const;

 private:
  double bandwidth(const Link& link, double bytes, int nodes) const;
  double latency(const Link& link) const;
  double uncorrected_seconds(Collective kind, const GroupShape& group, double bytes) const;
  const Constants& constants_;
};

}  // namespace optimus
