// Seconds of communication: messages between two devices and collectives over a group, by the links that join them.
//
// A collective is a ring through the group's devices, domain by domain: what limits it is the slowest link and how many of
// them work for the group at one time (a group with k devices in each domain uses k network links of it). Sums of small
// tensors go through a tree instead where that is quicker.
//
// In an exchange of tokens each device sends everybody a part. A token for several experts of another domain goes there once
// and is copied (or summed, on the way back) inside it; what stays in a domain and what leaves it go side by side.
#pragma once

#include <span>

#include "cluster/device_map.h"
#include "cost/constants.h"

namespace optimus {

enum class Collective { gather, reduce_scatter, all_reduce, ring_step };

// What a group looks like on the cluster.
struct GroupShape {
  int size = 1, domains = 1, nodes = 1;
  Link inside, between;  // slowest inside a domain; between domains. kind same_device where there is none
};
GroupShape shape_of(std::span<const int> members, const Cluster& cluster, const DeviceMap& map);
// Of the first `num_devices` of the cluster, without looking at each.
GroupShape shape_of_all(int num_devices, const Cluster& cluster);

class LinkCost {
 public:
  explicit LinkCost(const Constants& constants) : constants_(constants) {}
  // `bytes`: of the whole tensor on one device (what a gather makes, what a reduction sums); ring_step: what one device
  // hands to the next.
  double collective(Collective kind, const GroupShape& group, double bytes) const;
  double message(const Link& link, double bytes) const;
  // Tokens to their experts or back: `bytes` of one device's tokens, each counted for each of its `copies` experts, which lie
  // anywhere in the group.
  double exchange(const GroupShape& group, double bytes, double copies) const;

 private:
  double bandwidth(const Link& link, double bytes, int nodes) const;
  double latency(const Link& link) const;
  double undisturbed(Collective kind, const GroupShape& group, double bytes) const;  // without residual
  const Constants& constants_;
};

}  // namespace optimus
