// Computes the seconds of communication, for messages between two devices and for collectives in a group,
// from the links that connect the devices.
//
// A collective is modeled as a ring through the devices of the group, domain by domain. It is limited by the
// slowest link and by the number of links that the group uses concurrently. A group with k devices in each
// domain uses k network links per domain. Small reductions use a tree if it is faster.
//
// In a token exchange, each device sends different tokens to every other device. A token for several experts
// in another domain is sent there once and copied inside that domain. On the way back, the results are summed
// in that domain and sent once. Traffic inside domains overlaps with traffic between domains.
#pragma once

#include <span>

#include "cluster/device_map.h"
#include "cost/constants.h"

namespace optimus {

enum class Collective { gather, reduce_scatter, all_reduce, ring_step };

// The placement of a group on the cluster: the number of its devices, and the numbers of domains and nodes
// that it spans.
struct GroupShape {
  int size = 1, domains = 1, nodes = 1;
  // The slowest link inside a domain and the slowest link between domains. If there is no such link, the kind
  // is same_device.
  Link intra_node, inter_node;
};
GroupShape shape_of(std::span<const int> members, const Cluster& cluster, const DeviceMap& map);
// The shape of a group of the first `num_devices` devices of the cluster, computed without visiting each
// device.
GroupShape shape_of_all(int num_devices, const Cluster& cluster);

class LinkCost {
 public:
  explicit LinkCost(const Constants& constants) : constants_(constants) {}
  // Seconds taken by a collective. `bytes` is the size of the whole tensor on one device: the output of a
  // gather or the input of a reduction. For ring_step, it is the number of bytes that one device sends to the
  // next.
  double collective_seconds(Collective kind, const GroupShape& group, double bytes) const;
  double message_seconds(const Link& link, double bytes) const;
  // Seconds to send tokens to their experts or back. `bytes` is the size of the tokens of one device, where
  // each token is counted once for each of its `copies` experts. The experts may be anywhere in the group.
  double exchange_seconds(const GroupShape& group, double bytes, double copies) const;

 private:
  double bandwidth(const Link& link, double bytes, int nodes) const;
  double latency(const Link& link) const;
  double uncorrected_seconds(Collective kind, const GroupShape& group, double bytes) const;
  const Constants& constants_;
};

}  // namespace optimus
