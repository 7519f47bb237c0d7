// Topology: determines the node, stage and pipeline of each rank in a plan, and the ranks that are connected
// by its channels. Ranks are the device indices of the plan. Immutable after construction; keeps no
// references.
#pragma once

#include <map>
#include <vector>

#include "adapt/observation.h"
#include "cluster/device_map.h"
#include "plan/plan.h"

namespace optimus {

class Topology {
 public:
  Topology(const Plan& plan, const Cluster& cluster, const DeviceMap& map);

  int num_ranks() const { return static_cast<int>(places_.size()); }
  int num_nodes() const { return static_cast<int>(ranks_of_node_.size()); }  // nodes with ranks
  // A group is a stage of a pipeline; the stages of all pipelines are numbered consecutively.
  int num_groups() const { return static_cast<int>(ranks_of_group_.size()); }
  int group_of(int rank) const { return places_[static_cast<std::size_t>(rank)].group; }
  int node_of(int rank) const { return places_[static_cast<std::size_t>(rank)].node; }
  const std::vector<int>& ranks_of_node(int node) const { return ranks_of_node_.at(node); }
  const std::vector<int>& ranks_of_group(int group) const {
    return ranks_of_group_[static_cast<std::size_t>(group)];
  }
  // The ranks that the channel connects with `rank`, including `rank` itself. If `rank` does not use the
  // channel, it is the only element.
  std::vector<int> members(int rank, Channel channel) const;
  // The nodes of members(rank, channel).
  std::vector<int> nodes_of(int rank, Channel channel) const;

 private:
  struct Place {
    int group = -1, index = 0, node = 0, pipeline = 0, stage = 0;
  };
  void find_shared_groups(const Plan& plan);
  std::vector<int> data_members(const Place& position) const;

  std::vector<Place> places_;  // [rank]
  std::map<int, std::vector<int>> ranks_of_node_;
  std::vector<std::vector<int>> ranks_of_group_;
  std::vector<int> unit_sizes_;                // [group]: tp * cp of the group's first layers
  std::vector<int> first_group_, last_group_;  // [group]: first and last group of its pipeline
  // [group]: the groups in all pipelines that contain at least one of the group's blocks, including the group
  // itself. Empty if the plan has only one pipeline.
  std::vector<std::vector<int>> groups_with_same_blocks_;
};

}  // namespace optimus
