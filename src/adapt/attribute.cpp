// From what lasts to who is to blame: the second half of Detector (adapt/detect.h).
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "adapt/detect.h"
#include "base/text.h"

namespace optimus {
namespace {

void keep_last(std::deque<double>& values, double value, std::size_t most) {
  values.push_back(value);
  if (values.size() > most) values.pop_front();
}

double middle_of(const std::deque<double>& all, std::size_t last) {
  std::vector<double> values(all.end() - static_cast<std::ptrdiff_t>(std::min(last, all.size())), all.end());
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[(values.size() - 1) / 2];
}

// Steps until the limit, along the line through the values; 0: not growing steadily.
double steps_to_limit(const std::deque<double>& values, double limit) {
  const auto n = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / n, middle = (n - 1) / 2;
  double xx = 0, xy = 0, yy = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double x = static_cast<double>(i) - middle, y = values[i] - mean;
    xx += x * x, xy += x * y, yy += y * y;
  }
  if (yy <= 0 || xy <= 0 || xy * xy / (xx * yy) < 0.8) return 0;
  return std::max(1.0, (limit - values.back()) / (xy / xx));
}

}  // namespace

void Detector::find_slow_ranks(std::vector<Finding>& found) const {
  if (common_.is_lasting) {
    const bool is_one_node = topology_.num_nodes() == 1;
    const std::vector<int> where = is_one_node
                                       ? std::vector<int>{topology_.node_of(topology_.ranks_of_group(0)[0])}
                                       : std::vector<int>{};
    found.push_back(finding_of(is_one_node ? Cause::host : Cause::cluster, where, {&common_}));
  }
  std::set<int> slow;
  for (const auto& [key, track] : tracks_) {
    if ((key.first != Measure::compute && key.first != Measure::clock) || !track.is_lasting) continue;
    if (key.second >= 0)
      slow.insert(key.second);
    else if (const auto& ranks = topology_.ranks_of_group(-1 - key.second); ranks.size() > Spread::kLargest)
      slow.insert(ranks.begin(), ranks.end());
  }
  complete_nodes(slow);
  const auto take = [&](Cause cause, int where, const std::vector<int>& ranks) {
    if (ranks.size() < 2 || !std::includes(slow.begin(), slow.end(), ranks.begin(), ranks.end())) return;
    std::vector<const Track*> tracks;
    for (const int rank : ranks) {
      if (const Track* const track = slowness_of(rank); track != nullptr) tracks.push_back(track);
      slow.erase(rank);
    }
    if (!tracks.empty()) found.push_back(finding_of(cause, {where}, tracks));
  };
  const auto sorted = [](std::vector<int> ranks) { return std::sort(ranks.begin(), ranks.end()), ranks; };
  // All ranks of a stage at once on several nodes: the stage. On one node: the node is the simpler reason.
  std::set<int> groups, nodes;
  for (const int rank : slow) groups.insert(topology_.group_of(rank)), nodes.insert(topology_.node_of(rank));
  for (const int group : groups) {
    const std::vector<int> ranks = sorted(topology_.ranks_of_group(group));
    const int node = topology_.node_of(ranks.front());
    const bool is_on_one =
        std::all_of(ranks.begin(), ranks.end(), [&](int r) { return topology_.node_of(r) == node; });
    const bool is_whole_node = is_on_one && ranks.size() == topology_.ranks_of_node(node).size();
    const std::vector<int> others = sorted(topology_.ranks_of_node(node));
    const bool is_node_slow =
        is_on_one && std::includes(slow.begin(), slow.end(), others.begin(), others.end());
    if (!is_whole_node && !is_node_slow) take(Cause::heavy_stage, group, ranks);
  }
  for (const int node : nodes) take(Cause::host, node, sorted(topology_.ranks_of_node(node)));
  for (const int rank : slow) {
    const Track* const track = slowness_of(rank);
    if (track == nullptr) continue;  // it only made a node complete, which has become a stage's
    found.push_back(finding_of(Cause::device, {rank}, {track}));
    if (const Track* clock = track_of(Measure::clock, rank); clock != nullptr)
      found.back().clock = 1 / middle_of(clock->ratios, static_cast<std::size_t>(options_.short_window));
  }
}

void Detector::complete_nodes(std::set<int>& slow) const {
  const auto window = static_cast<std::size_t>(options_.quick_window);
  const auto is_nearly = [&](int rank, double factor) {
    const auto track = tracks_.find({Measure::compute, rank});
    return track != tracks_.end() && middle_of(track->second.ratios, window) >= 1 + (factor - 1) / 2;
  };
  const std::set<int> found = slow;
  for (const int rank : found) {
    const std::vector<int>& others = topology_.ranks_of_node(topology_.node_of(rank));
    const double factor = middle_of(slowness_of(rank)->ratios, window);
    if (std::all_of(others.begin(), others.end(),
                    [&](int other) { return found.contains(other) || is_nearly(other, factor); }))
      slow.insert(others.begin(), others.end());
  }
}

const Detector::Track* Detector::slowness_of(int rank) const {
  const Track* const compute = track_of(Measure::compute, rank);
  return compute != nullptr ? compute : track_of(Measure::clock, rank);
}

bool Detector::is_link_slow(Channel channel, int rank) const {
  const Channel back = channel == Channel::next       ? Channel::previous
                       : channel == Channel::previous ? Channel::next
                                                      : channel;
  for (const int member : topology_.members(rank, channel))
    if (member != rank && !is_slow(measure_of(back), member)) return false;
  return is_slow(measure_of(channel), rank);
}

bool Detector::is_explained_by_device(const Track& link, Channel channel, int rank) const {
  const auto window = static_cast<std::size_t>(options_.short_window);
  const double slowdown = middle_of(link.ratios, window);
  for (const int member : topology_.members(rank, channel))
    for (const int key : {member, -1 - topology_.group_of(member)})
      if (const auto own = tracks_.find({Measure::compute, key});
          own != tracks_.end() && middle_of(own->second.ratios, window) >= slowdown)
        return true;
  return false;
}

// A node explains a slow channel when it takes part in it; it is spoken for by its own channels to other nodes that are not slow.
// The node with the best balance is named, with those that have the same; what it does not explain is left to the next.
void Detector::find_slow_links(std::vector<Finding>& found) const {
  struct SlowChannel {
    const Track* track;
    std::vector<int> nodes;
  };
  std::vector<SlowChannel> slow;
  for (const auto& [key, track] : tracks_) {
    if (key.first < Measure::next || !track.is_lasting || key.second < 0) continue;
    const auto channel = static_cast<Channel>(static_cast<int>(key.first) - static_cast<int>(Measure::next));
    std::vector<int> nodes = topology_.nodes_of(key.second, channel);
    if (nodes.size() > 1 && is_link_slow(channel, key.second) &&
        !is_explained_by_device(track, channel, key.second))
      slow.push_back({&track, std::move(nodes)});
  }
  while (!slow.empty()) {
    std::map<int, double> balance;
    for (const SlowChannel& one : slow)
      for (const int node : one.nodes) balance[node] += 1;
    double best = -1e300;
    for (auto& [node, score] : balance) {
      for (const int rank : topology_.ranks_of_node(node))
        for (std::size_t c = 0; c < kChannels; ++c) {
          const auto channel = static_cast<Channel>(c);
          if (!is_link_slow(channel, rank) && topology_.nodes_of(rank, channel).size() > 1) score -= 2;
        }
      best = std::max(best, score);
    }
    std::vector<int> named;
    for (const auto& [node, score] : balance)
      if (score == best) named.push_back(node);
    std::vector<const Track*> tracks;
    std::erase_if(slow, [&](const SlowChannel& one) {
      const bool is_explained = std::any_of(one.nodes.begin(), one.nodes.end(), [&](int node) {
        return std::binary_search(named.begin(), named.end(), node);
      });
      if (is_explained) tracks.push_back(one.track);
      return is_explained;
    });
    found.push_back(finding_of(Cause::link, std::move(named), tracks));
  }
}

// Since the plan began, not since something happened: shares of the stages' mean. What a slow device adds is not the stage's.
void Detector::find_heavy_stage(const Observation& observation, std::vector<Finding>& found) {
  double sum = 0;
  int number = 0;
  for (const auto& [group, seen] : observation.groups)
    if (const double value = seen.of(Measure::compute).median(); value > 0) sum += value, ++number;
  if (number < 2) return;
  const auto window = static_cast<std::size_t>(options_.long_window);
  int heaviest = -1;
  double most = 0;
  for (const auto& [group, seen] : observation.groups) {
    std::deque<double>& shares = stage_shares_[static_cast<std::size_t>(group)];
    keep_last(shares, seen.of(Measure::compute).median() * number / sum, window);
    if (const double middle = middle_of(shares, window); middle > most) most = middle, heaviest = group;
  }
  const bool is_known =
      heaviest >= 0 && std::ssize(stage_shares_[static_cast<std::size_t>(heaviest)]) >= options_.warm_up;
  if (!is_known || most < options_.stage_factor) return;
  for (const int rank : topology_.ranks_of_group(heaviest))
    if (is_slow(Measure::compute, rank)) return;
  found.push_back({Cause::heavy_stage, {heaviest}, most, 0, first_step_});
}

void Detector::find_data_wait(const Observation& observation, std::vector<Finding>& found) {
  double most = 0;
  std::vector<int> where;
  for (const auto& [group, seen] : observation.groups)
    for (const Seen& one : seen.of(Measure::data_wait).largest) {
      if (one.value >= options_.data_share * observation.seconds) where.push_back(one.rank);
      most = std::max(most, one.value);
    }
  keep_last(data_shares_, observation.seconds > 0 ? std::min(0.95, most / observation.seconds) : 0,
            static_cast<std::size_t>(options_.short_window));
  const double share = middle_of(data_shares_, data_shares_.size());
  if (std::ssize(data_shares_) < options_.short_window || share < options_.data_share) return;
  if (std::ssize(where) * 2 > observation.num_ranks) where.clear();  // all of them
  std::sort(where.begin(), where.end());
  found.push_back({Cause::data_loading, where, 1 / (1 - share), 0, step_ - options_.short_window + 1});
}

void Detector::find_uneven_lengths(const Observation& observation, std::vector<Finding>& found) {
  double most = 0, sum = 0;
  std::int64_t ranks = 0;
  for (const auto& [group, seen] : observation.groups) {
    const Spread& work = seen.of(Measure::work);
    if (work.count > 0) most = std::max(most, work.largest.front().value);
    sum += work.sum, ranks += work.count;
  }
  if (sum <= 0) return;
  const auto window = static_cast<std::size_t>(options_.short_window);
  keep_last(uneven_, most * static_cast<double>(ranks) / sum, window);
  const double middle = middle_of(uneven_, window);
  if (uneven_.size() == window && middle >= options_.uneven_factor)
    found.push_back({Cause::uneven_lengths, {}, middle, 0, step_ - options_.short_window + 1});
}

void Detector::find_memory_growth(const Observation& observation, std::vector<Finding>& found) {
  constexpr std::size_t kWindow = 64;
  const auto limit = static_cast<double>(observation.memory_limit.value);
  if (limit <= 0) return;
  for (const auto& [group, seen] : observation.groups) {
    const Spread& spread = seen.of(Measure::memory);
    if (spread.count == 0) continue;
    std::deque<double>& values = memory_[static_cast<std::size_t>(group)];
    keep_last(values, spread.largest.front().value, kWindow);
    if (values.size() < kWindow) continue;
    const double steps = steps_to_limit(values, limit);
    if (steps > 0 && steps <= options_.memory_horizon)
      found.push_back(
          {Cause::memory, {group}, limit / values.back(), 0, step_ - static_cast<int>(kWindow) + 1});
  }
}

}  // namespace optimus
