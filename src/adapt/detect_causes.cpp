// Implements detect.h: attributes lasting ratios to devices, hosts, links and stages.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "adapt/detect.h"
#include "base/text.h"

namespace optimus {
namespace {

void keep_last(std::deque<double>& values, double value, std::size_t max_count) {
  values.push_back(value);
  if (values.size() > max_count) values.pop_front();
}

double median_of_last(const std::deque<double>& values, std::size_t last) {
  std::vector<double> sorted(values.end() - static_cast<std::ptrdiff_t>(std::min(last, values.size())),
                             values.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted.empty() ? 0 : sorted[(sorted.size() - 1) / 2];
}

// The number of steps until the values reach `limit`, by linear regression, or 0 if they do not grow
// steadily.
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

void Detector::find_slow_ranks(std::vector<Finding>& findings) const {
  if (common_track_.is_lasting) {
    const bool is_one_node = topology_.num_nodes() == 1;
    const std::vector<int> location =
        is_one_node ? std::vector<int>{topology_.node_of(topology_.ranks_of_group(0)[0])}
                    : std::vector<int>{};
    findings.push_back(finding_of(is_one_node ? Cause::host : Cause::cluster, location, {&common_track_}));
  }
  std::set<int> slow = slow_ranks();
  complete_nodes(slow);
  std::set<int> groups, nodes;
  for (const int rank : slow) groups.insert(topology_.group_of(rank)), nodes.insert(topology_.node_of(rank));
  for (const int group : groups)
    if (!is_explained_by_node(group, slow))
      attribute(Cause::heavy_stage, group, topology_.ranks_of_group(group), slow, findings);
  for (const int node : nodes) attribute(Cause::host, node, topology_.ranks_of_node(node), slow, findings);
  for (const int rank : slow) {
    const Track* const track = slow_track_of(rank);
    // The rank was only added to complete a slow node, and the other ranks of that node were attributed to a
    // stage.
    if (track == nullptr) continue;
    findings.push_back(finding_of(Cause::device, {rank}, {track}));
    if (const Track* clock = track_of(Measure::clock, rank); clock != nullptr)
      findings.back().clock =
          1 / median_of_last(clock->ratios, static_cast<std::size_t>(options_.short_window));
  }
}

std::set<int> Detector::slow_ranks() const {
  std::set<int> slow;
  for (const auto& [key, track] : tracks_) {
    if ((key.first != Measure::compute && key.first != Measure::clock) || !track.is_lasting) continue;
    if (key.second >= 0)
      slow.insert(key.second);
    else if (const auto& ranks = topology_.ranks_of_group(-1 - key.second); ranks.size() > Spread::kLargest)
      slow.insert(ranks.begin(), ranks.end());
  }
  return slow;
}

void Detector::attribute(Cause cause, int location, std::vector<int> ranks, std::set<int>& slow,
                         std::vector<Finding>& findings) const {
  std::sort(ranks.begin(), ranks.end());
  if (ranks.size() < 2 || !std::includes(slow.begin(), slow.end(), ranks.begin(), ranks.end())) return;
  std::vector<const Track*> tracks;
  for (const int rank : ranks) {
    if (const Track* const track = slow_track_of(rank); track != nullptr) tracks.push_back(track);
    slow.erase(rank);
  }
  if (!tracks.empty()) findings.push_back(finding_of(cause, {location}, tracks));
}

// Whether a slow node explains a slow stage (`group`). This is so if the stage runs on a single node and all
// other ranks of this node, if any, are slow too.
bool Detector::is_explained_by_node(int group, const std::set<int>& slow) const {
  const std::vector<int>& ranks = topology_.ranks_of_group(group);
  const int node = topology_.node_of(*std::min_element(ranks.begin(), ranks.end()));
  const auto is_on_node = [&](int rank) { return topology_.node_of(rank) == node; };
  if (!std::all_of(ranks.begin(), ranks.end(), is_on_node)) return false;
  const std::vector<int>& node_ranks = topology_.ranks_of_node(node);
  return ranks.size() == node_ranks.size() ||
         std::all_of(node_ranks.begin(), node_ranks.end(), [&](int rank) { return slow.contains(rank); });
}

void Detector::complete_nodes(std::set<int>& slow) const {
  const auto window = static_cast<std::size_t>(options_.strong_window);
  const auto is_nearly_slow = [&](int rank, double factor) {
    const auto track = tracks_.find({Measure::compute, rank});
    return track != tracks_.end() && median_of_last(track->second.ratios, window) >= 1 + (factor - 1) / 2;
  };
  const std::set<int> slow_before = slow;
  for (const int rank : slow_before) {
    const std::vector<int>& node_ranks = topology_.ranks_of_node(topology_.node_of(rank));
    const double factor = median_of_last(slow_track_of(rank)->ratios, window);
    if (std::all_of(node_ranks.begin(), node_ranks.end(), [&](int node_rank) {
          return slow_before.contains(node_rank) || is_nearly_slow(node_rank, factor);
        }))
      slow.insert(node_ranks.begin(), node_ranks.end());
  }
}

const Detector::Track* Detector::slow_track_of(int rank) const {
  const Track* const compute = track_of(Measure::compute, rank);
  return compute != nullptr ? compute : track_of(Measure::clock, rank);
}

bool Detector::is_link_slow(Channel channel, int rank) const {
  const Channel opposite = channel == Channel::next       ? Channel::previous
                           : channel == Channel::previous ? Channel::next
                                                          : channel;
  for (const int member : topology_.members(rank, channel))
    if (member != rank && !is_slow(measure_of(opposite), member)) return false;
  return is_slow(measure_of(channel), rank);
}

bool Detector::is_explained_by_device(const Track& link, Channel channel, int rank) const {
  const auto window = static_cast<std::size_t>(options_.short_window);
  const double slowdown = median_of_last(link.ratios, window);
  for (const int member : topology_.members(rank, channel))
    for (const int key : {member, -1 - topology_.group_of(member)})
      if (const auto it = tracks_.find({Measure::compute, key});
          it != tracks_.end() && median_of_last(it->second.ratios, window) >= slowdown)
        return true;
  return false;
}

// A node explains all slow channels that it belongs to. The score of a node is the number of slow channels
// that it explains, minus 2 for each channel from its ranks to other nodes that is not slow. Each round
// reports the nodes with the best score. The next round handles the channels that remain unexplained.
void Detector::find_slow_links(std::vector<Finding>& findings) const {
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
    std::map<int, double> scores;
    for (const SlowChannel& slow_channel : slow)
      for (const int node : slow_channel.nodes) scores[node] += 1;
    double best_ratio = -1e300;
    for (auto& [node, score] : scores) {
      for (const int rank : topology_.ranks_of_node(node))
        for (std::size_t c = 0; c < kChannels; ++c) {
          const auto channel = static_cast<Channel>(c);
          if (!is_link_slow(channel, rank) && topology_.nodes_of(rank, channel).size() > 1) score -= 2;
        }
      best_ratio = std::max(best_ratio, score);
    }
    std::vector<int> slow_nodes;
    for (const auto& [node, score] : scores)
      if (score == best_ratio) slow_nodes.push_back(node);
    std::vector<const Track*> tracks;
    std::erase_if(slow, [&](const SlowChannel& slow_channel) {
      const bool is_explained = std::any_of(
          slow_channel.nodes.begin(), slow_channel.nodes.end(),
          [&](int node) { return std::binary_search(slow_nodes.begin(), slow_nodes.end(), node); });
      if (is_explained) tracks.push_back(slow_channel.track);
      return is_explained;
    });
    findings.push_back(finding_of(Cause::link, std::move(slow_nodes), tracks));
  }
}

// Compares each stage with the mean of all stages, not with a baseline. If a device of the stage is slow, the
// stage is not reported.
void Detector::find_heavy_stage(const Observation& observation, std::vector<Finding>& findings) {
  double sum = 0;
  int num_stages = 0;
  for (const auto& [group, group_step] : observation.groups)
    if (const double value = group_step.of(Measure::compute).median(); value > 0) sum += value, ++num_stages;
  if (num_stages < 2) return;
  const auto window = static_cast<std::size_t>(options_.long_window);
  int heaviest = -1;
  double largest_share = 0;
  for (const auto& [group, group_step] : observation.groups) {
    std::deque<double>& shares = stage_shares_[static_cast<std::size_t>(group)];
    keep_last(shares, group_step.of(Measure::compute).median() * num_stages / sum, window);
    if (const double middle = median_of_last(shares, window); middle > largest_share)
      largest_share = middle, heaviest = group;
  }
  const bool is_known =
      heaviest >= 0 && std::ssize(stage_shares_[static_cast<std::size_t>(heaviest)]) >= options_.warm_up;
  if (!is_known || largest_share < options_.stage_factor) return;
  for (const int rank : topology_.ranks_of_group(heaviest))
    if (is_slow(Measure::compute, rank)) return;
  findings.push_back({Cause::heavy_stage, {heaviest}, largest_share, 0, first_step_});
}

void Detector::find_data_wait(const Observation& observation, std::vector<Finding>& findings) {
  double longest_wait = 0;
  std::vector<int> waiting_ranks;
  for (const auto& [group, group_step] : observation.groups)
    for (const RankValue& rank_value : group_step.of(Measure::data_wait).largest) {
      if (rank_value.value >= options_.data_share * observation.seconds)
        waiting_ranks.push_back(rank_value.rank);
      longest_wait = std::max(longest_wait, rank_value.value);
    }
  keep_last(data_shares_, observation.seconds > 0 ? std::min(0.95, longest_wait / observation.seconds) : 0,
            static_cast<std::size_t>(options_.short_window));
  const double share = median_of_last(data_shares_, data_shares_.size());
  if (std::ssize(data_shares_) < options_.short_window || share < options_.data_share) return;
  // Most ranks wait, so no particular rank is reported.
  if (std::ssize(waiting_ranks) * 2 > observation.num_ranks) waiting_ranks.clear();
  std::sort(waiting_ranks.begin(), waiting_ranks.end());
  findings.push_back(
      {Cause::data_loading, waiting_ranks, 1 / (1 - share), 0, step_ - options_.short_window + 1});
}

void Detector::find_uneven_lengths(const Observation& observation, std::vector<Finding>& findings) {
  double largest_work = 0, sum = 0;
  std::int64_t ranks = 0;
  for (const auto& [group, group_step] : observation.groups) {
    const Spread& relative_work = group_step.of(Measure::work);
    if (relative_work.count > 0) largest_work = std::max(largest_work, relative_work.largest.front().value);
    sum += relative_work.sum, ranks += relative_work.count;
  }
  if (sum <= 0) return;
  const auto window = static_cast<std::size_t>(options_.short_window);
  keep_last(uneven_factors_, largest_work * static_cast<double>(ranks) / sum, window);
  const double middle = median_of_last(uneven_factors_, window);
  if (uneven_factors_.size() == window && middle >= options_.uneven_factor)
    findings.push_back({Cause::uneven_lengths, {}, middle, 0, step_ - options_.short_window + 1});
}

void Detector::find_memory_growth(const Observation& observation, std::vector<Finding>& findings) {
  constexpr std::size_t kWindow = 64;
  const auto limit = static_cast<double>(observation.memory_limit.value);
  if (limit <= 0) return;
  for (const auto& [group, group_step] : observation.groups) {
    const Spread& spread = group_step.of(Measure::memory);
    if (spread.count == 0) continue;
    std::deque<double>& values = memory_values_[static_cast<std::size_t>(group)];
    keep_last(values, spread.largest.front().value, kWindow);
    if (values.size() < kWindow) continue;
    const double steps = steps_to_limit(values, limit);
    if (steps > 0 && steps <= options_.memory_horizon)
      findings.push_back(
          {Cause::memory, {group}, limit / values.back(), 0, step_ - static_cast<int>(kWindow) + 1});
  }
}

}  // namespace optimus
