// Topology of detect.h.
#include <algorithm>
#include <set>

#include "adapt/detect.h"
#include "base/error.h"

namespace optimus {

Topology::Topology(const Plan& plan, const Cluster& cluster, const DeviceMap& map) {
  int most = -1;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      for (const int device : stage.devices) most = std::max(most, device);
  seats_.resize(static_cast<std::size_t>(most + 1));
  for (int p = 0; p < std::ssize(plan.pipelines); ++p) {
    const std::vector<Stage>& stages = plan.pipelines[static_cast<std::size_t>(p)].stages;
    const int first = num_groups(), last = first + static_cast<int>(stages.size()) - 1;
    for (int s = 0; s < std::ssize(stages); ++s) {
      const Stage& stage = stages[static_cast<std::size_t>(s)];
      const LayerStrategy& strategy = stage.chunks.front().runs.front().strategy;
      for (int i = 0; i < std::ssize(stage.devices); ++i) {
        const int rank = stage.devices[static_cast<std::size_t>(i)];
        const int node = cluster.node_of(map[VirtualDevice{rank}]);
        seats_[static_cast<std::size_t>(rank)] = {first + s, i, node, p, s};
        ranks_of_node_[node].push_back(rank);
      }
      ranks_of_group_.push_back(stage.devices);
      inner_.push_back(strategy.tp * strategy.cp);
      first_of_.push_back(first), last_.push_back(last);
    }
  }
}

std::vector<int> Topology::members(int rank, Channel channel) const {
  const RankSeat& seat = seats_[static_cast<std::size_t>(rank)];
  const auto group = static_cast<std::size_t>(seat.group);
  const std::vector<int>& own = ranks_of_group_[group];
  std::vector<int> found;
  if (channel == Channel::next || channel == Channel::previous) {
    const int other = seat.group + (channel == Channel::next ? 1 : -1);
    found = {rank};
    if (other < first_of_[group] || other > last_[group]) return found;
    const std::vector<int>& there = ranks_of_group_[static_cast<std::size_t>(other)];
    // Stages of different width: whoever has the same part of the samples.
    const std::size_t index = static_cast<std::size_t>(seat.index) * there.size() / own.size();
    found.push_back(there[index]);
    return found;
  }
  const int inner = inner_[group], unit = seat.index / inner;
  for (int i = 0; i < std::ssize(own); ++i)
    if (channel == Channel::tensor ? i / inner == unit : i % inner == seat.index % inner)
      found.push_back(own[static_cast<std::size_t>(i)]);
  return found;
}

std::vector<int> Topology::nodes_of(int rank, Channel channel) const {
  std::set<int> nodes;
  for (const int member : members(rank, channel)) nodes.insert(node_of(member));
  return {nodes.begin(), nodes.end()};
}

}  // namespace optimus
