// Whose network and which devices are slow, where steps cannot tell: behind one step all stand still for a moment. One rank of each node sends
// and gets a message with those of some other nodes, one after the other; a node's network is as quick as the quickest of its pairs. Then each
// rank computes the same product. What messages and sums take where nothing is slow is one meeting of each, and a sum over all ranks as gradients are summed. A ring's time says nothing about single nodes, and whom the plan leaves out is seen by nobody else.
//
// Each node meets up to 2 + log2(nodes) others, so that a slow one shows in its own pairs and in nobody's quickest; messages grow until one
// takes some milliseconds. With two nodes there is one pair, which says nothing about either.
#pragma once

#include <optional>
#include <vector>

#include "adapt/probe_result.h"
#include "comm/comm.h"

namespace optimus {

int num_probe_rounds(int num_nodes);
// Whom a node meets in a round, and who meets it; nobody where their number is odd and it is left over.
std::optional<int> probe_partner(int node, int round, int num_nodes);

// As rank 0 says; what others give is not looked at.
struct ProbeWish {
  std::vector<int> node_of_rank{};  // 0, 1, …
  ProbeRequest look{};
};
// All ranks, at the same time, behind a step; what else is under way (small messages, state that is sent early) makes links seem slower.
// The same at all ranks. Throws PeersLost.
ProbeResult probe(Comm& comm, const ProbeWish& wish, at::Device device, Seconds patience);

}  // namespace optimus
