// Whose network is slow, where the time of a ring cannot tell: behind one step all stand still for a moment, and one rank of each node sends
// and gets a message with those of some other nodes, one after the other. A node's network is as quick as the quickest of its pairs.
//
// Each node meets up to 2 + log2(nodes) others, so that a slow one shows in its own pairs and in nobody's quickest; messages grow until one
// takes some milliseconds. With two nodes there is one pair, which says nothing about either.
#pragma once

#include <optional>
#include <vector>

#include "comm/comm.h"

namespace optimus {

int num_probe_rounds(int num_nodes);
// Whom a node meets in a round, and who meets it; nobody where their number is odd and it is left over.
std::optional<int> probe_partner(int node, int round, int num_nodes);

// All ranks, at the same time, no other operation under way. Nodes are as rank 0 says: 0, 1, … of each rank; what others give is not looked at.
// Seconds a byte of each node, the same at all ranks; 0: it has met nobody. Throws PeersLost.
std::vector<double> probe_links(Comm& comm, const std::vector<int>& node_of_rank, Seconds patience);

}  // namespace optimus
