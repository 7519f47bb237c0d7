// Computes distances and places of ranks.
#include "layout/rank_domains.h"

#include <algorithm>

#include "base/error.h"

namespace optimus {

int distance(const RankDomains& topology, Rank a, Rank b) {
  int level = 0;
  for (const std::vector<int>& domain_of : topology.domain_of) {
    if (domain_of[static_cast<std::size_t>(a.value)] == domain_of[static_cast<std::size_t>(b.value)]) break;
    ++level;
  }
  return level;
}

RankPlaces::RankPlaces(const RankDomains& topology, int num_ranks) {
  if (topology.domain_of.size() > kMaxLevels)
    throw UserError("topology: expected at most {} levels, got {}", kMaxLevels, topology.domain_of.size());
  for (std::size_t level = 0; level < topology.domain_of.size(); ++level)
    if (topology.domain_of[level].size() < static_cast<std::size_t>(num_ranks))
      throw UserError("topology level {}: expected {} ranks, got {}", level, num_ranks,
                      topology.domain_of[level].size());
  for (int r = 0; r < num_ranks; ++r) rank_at_.push_back(Rank{r});
  const auto& levels = topology.domain_of;
  const auto comes_before = [&](Rank a, Rank b) {
    for (std::size_t level = levels.size(); level-- > 0;) {
      const int domain_a = levels[level][static_cast<std::size_t>(a.value)];
      const int domain_b = levels[level][static_cast<std::size_t>(b.value)];
      if (domain_a != domain_b) return domain_a < domain_b;
    }
    return a < b;
  };
  if (!std::is_sorted(rank_at_.begin(), rank_at_.end(), comes_before))
    std::sort(rank_at_.begin(), rank_at_.end(), comes_before);
  place_of_.resize(rank_at_.size());
  for (int place = 0; place < num_places(); ++place)
    place_of_[static_cast<std::size_t>(rank_at(place).value)] = place;

  for (std::size_t level = 0; level < levels.size(); ++level) {
    const auto domain_at = [&](int place) {
      return levels[level][static_cast<std::size_t>(rank_at(place).value)];
    };
    std::vector<int> domain_ids;
    std::vector<Range> ranges(rank_at_.size());
    for (int begin = 0; begin < num_places();) {
      int end = begin + 1;
      while (end < num_places() && domain_at(end) == domain_at(begin)) ++end;
      std::fill(ranges.begin() + begin, ranges.begin() + end, Range{begin, end});
      domain_ids.push_back(domain_at(begin));
      begin = end;
    }
    std::sort(domain_ids.begin(), domain_ids.end());
    if (const auto duplicate = std::adjacent_find(domain_ids.begin(), domain_ids.end());
        duplicate != domain_ids.end())
      throw UserError(
          "domain {} of level {} is part of two domains of a higher level; expected nested domains",
          *duplicate, level);
    domains_.push_back(std::move(ranges));
  }
}

}  // namespace optimus
