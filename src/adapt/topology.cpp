// Implements topology.h.
#include "adapt/topology.h"

#include <algorithm>
#include <set>

namespace optimus {

Topology::Topology(const Plan& plan, const Cluster& cluster, const DeviceMap& map) {
  int max_rank = -1;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const int device : stage.devices) max_rank = std::max(max_rank, device);
  places_.resize(static_cast<std::size_t>(max_rank + 1));
  for (int p = 0; p < std::ssize(plan.pipelines); ++p) {
    const std::vector<Stage>& stages = plan.pipelines[static_cast<std::size_t>(p)].stages;
    const int first = num_groups(), last = first + static_cast<int>(stages.size()) - 1;
    for (int s = 0; s < std::ssize(stages); ++s) {
      const Stage& stage = stages[static_cast<std::size_t>(s)];
      const LayerStrategy& strategy = stage.chunks.front().runs.front().strategy;
      for (int i = 0; i < std::ssize(stage.devices); ++i) {
        const int rank = stage.devices[static_cast<std::size_t>(i)];
        const int node = cluster.node_of(map[VirtualDevice{rank}]);
        places_[static_cast<std::size_t>(rank)] = {first + s, i, node, p, s};
        ranks_of_node_[node].push_back(rank);
      }
      ranks_of_group_.push_back(stage.devices);
      unit_sizes_.push_back(strategy.tp * strategy.cp);
      first_group_.push_back(first), last_group_.push_back(last);
    }
  }
  if (plan.pipelines.size() > 1) find_shared_groups(plan);
}

// Pipelines all-reduce the gradients of the layers that they have in common, even if their stages have
// different layers.
void Topology::find_shared_groups(const Plan& plan) {
  std::map<int, std::vector<int>> groups_of;  // by block
  const auto for_each_block = [&](const auto& take) {
    int group = 0;
    for (const Pipeline& pipeline : plan.pipelines)
      for (const Stage& stage : pipeline.stages) {
        for (const Chunk& chunk : stage.chunks)
          for (const BlockRun& run : chunk.runs)
            for (int block = run.first_block; block < run.first_block + run.count; ++block)
              take(group, block);
        ++group;
      }
  };
  for_each_block([&](int group, int block) { groups_of[block].push_back(group); });
  std::vector<std::set<int>> shared(ranks_of_group_.size());
  for_each_block([&](int group, int block) {
    const std::vector<int>& block_groups = groups_of[block];
    shared[static_cast<std::size_t>(group)].insert(block_groups.begin(), block_groups.end());
  });
  for (const std::set<int>& groups : shared)
    groups_with_same_blocks_.emplace_back(groups.begin(), groups.end());
}

std::vector<int> Topology::members(int rank, Channel channel) const {
  const Place& position = places_[static_cast<std::size_t>(rank)];
  const auto group = static_cast<std::size_t>(position.group);
  const std::vector<int>& group_ranks = ranks_of_group_[group];
  std::vector<int> result;
  if (channel == Channel::next || channel == Channel::previous) {
    const int neighbor_group = position.group + (channel == Channel::next ? 1 : -1);
    result = {rank};
    if (neighbor_group < first_group_[group] || neighbor_group > last_group_[group]) return result;
    const std::vector<int>& neighbor_ranks = ranks_of_group_[static_cast<std::size_t>(neighbor_group)];
    // If the stages have different numbers of ranks, this is the rank that processes the same part of the
    // samples.
    const std::size_t index =
        static_cast<std::size_t>(position.index) * neighbor_ranks.size() / group_ranks.size();
    result.push_back(neighbor_ranks[index]);
    return result;
  }
  const int unit_size = unit_sizes_[group], unit = position.index / unit_size;
  if (channel == Channel::data && !groups_with_same_blocks_.empty()) return data_members(position);
  for (int i = 0; i < std::ssize(group_ranks); ++i)
    if (channel == Channel::tensor ? i / unit_size == unit : i % unit_size == position.index % unit_size)
      result.push_back(group_ranks[static_cast<std::size_t>(i)]);
  return result;
}

// The ranks that store the same shards of the same blocks. All ranks of a group are included if its tp * cp
// is different.
std::vector<int> Topology::data_members(const Place& position) const {
  const int unit_size = unit_sizes_[static_cast<std::size_t>(position.group)];
  std::vector<int> result;
  for (const int group : groups_with_same_blocks_[static_cast<std::size_t>(position.group)]) {
    const std::vector<int>& ranks = ranks_of_group_[static_cast<std::size_t>(group)];
    const bool is_alike = unit_sizes_[static_cast<std::size_t>(group)] == unit_size;
    for (int i = 0; i < std::ssize(ranks); ++i)
      if (!is_alike || i % unit_size == position.index % unit_size)
        result.push_back(ranks[static_cast<std::size_t>(i)]);
  }
  return result;
}

std::vector<int> Topology::nodes_of(int rank, Channel channel) const {
  std::set<int> nodes;
  for (const int member : members(rank, channel)) nodes.insert(node_of(member));
  return {nodes.begin(), nodes.end()};
}

}  // namespace optimus
