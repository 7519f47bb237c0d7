// Finds slow networks and devices that step times do not reveal, during a short pause after a step. One rank
// of each node exchanges messages with the corresponding rank of other nodes, one pair at a time. A node's
// network speed is that of its fastest pair. Pairs are used because the time of a ring does not identify
// individual nodes. Then each rank computes the same GEMM, which also covers devices that the plan does not
// use. For baselines of a healthy cluster, a probe measures one pair per node and an all-reduce over all
// ranks, like that of the gradients.
//
// Each node is paired with up to 2 + log2(nodes) other nodes, so that a slow node affects its own pairs but
// not the fastest pair of any other node. The message size grows until a message takes a few milliseconds.
// Two nodes form only one pair, which does not reveal which of them is slow.
#pragma once

#include <optional>
#include <vector>

#include "adapt/probe_result.h"
#include "comm/comm.h"

namespace optimus {

int num_probe_rounds(int num_nodes);
// Returns the partner of a node in a round; nullopt if the node has none, because the number of nodes is odd.
std::optional<int> probe_partner(int node, int round, int num_nodes);

// Set by rank 0; ignored on other ranks.
struct ProbeSettings {
  std::vector<int> node_of_rank{};  // [rank]: node index, from 0
  ProbeRequest request{};
};
// Called by all ranks at the same time after a step. Other traffic (small messages, state that is sent early)
// makes links appear slower. Returns the same result on all ranks. Throws PeersLost.
ProbeResult probe(Comm& comm, const ProbeSettings& settings, at::Device device, Seconds timeout);

}  // namespace optimus
