// RankDomains: the distances between ranks, as nested domains (same node, same rack, same island). This
// header contains only what is needed to choose a sender. Bandwidths and links are properties of the cluster.
//
//   RankDomains two_racks{{{0, 0, 1, 1, 2, 2, 3, 3},     // level 0: the node of each rank
//                          {0, 0, 0, 0, 1, 1, 1, 1}}};   // level 1: the rack
//   distance(two_racks, Rank{0}, Rank{1}) == 0,  ... Rank{3}) == 1,  ... Rank{7}) == 2
#pragma once

#include <span>
#include <vector>

#include "base/units.h"

namespace optimus {

inline constexpr int kMaxLevels = 7;

struct RankDomains {
  // [level][rank], finest level first. Domains are nested: ranks of one node share the rack, and so on. If
  // empty, all ranks are equally far apart.
  std::vector<std::vector<int>> domain_of;
};

// The lowest level at which the two ranks share a domain; domain_of.size() if they share none.
int distance(const RankDomains& topology, Rank a, Rank b);

// Orders the ranks so that every domain is a contiguous range. The position of a rank in this order is its
// place. If the ranks of each node are consecutive, the place of a rank equals the rank. Internal to
// src/layout.
class RankPlaces {
 public:
  struct Range {
    int begin = 0, end = 0;
  };
  // Throws a UserError if there are too many levels, a level does not cover all ranks, or domains are not
  // nested. O(ranks log ranks).
  RankPlaces(const RankDomains& topology, int num_ranks);

  int place_of(Rank rank) const { return place_of_[static_cast<std::size_t>(rank.value)]; }
  Rank rank_at(int place) const { return rank_at_[static_cast<std::size_t>(place)]; }
  int num_places() const { return static_cast<int>(rank_at_.size()); }
  // The last level is one domain that contains all ranks.
  int num_levels() const { return static_cast<int>(domains_.size()) + 1; }
  // Level -1 contains only the place itself.
  Range domain(int level, int place) const {
    if (level < 0) return {place, place + 1};
    if (level == static_cast<int>(domains_.size())) return {0, num_places()};
    return domains_[static_cast<std::size_t>(level)][static_cast<std::size_t>(place)];
  }

 private:
  std::vector<int> place_of_;
  std::vector<Rank> rank_at_;
  std::vector<std::vector<Range>> domains_;  // [level][place]
};

}  // namespace optimus
