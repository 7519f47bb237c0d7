// Implements the rule of fanout.h, for all receivers together and for a single one.
#include "layout/fanout.h"

#include <algorithm>

namespace optimus {
namespace {

int index_of(std::span<const int> places, int rank_place) {
  return static_cast<int>(std::lower_bound(places.begin(), places.end(), rank_place) - places.begin());
}

int count_in(std::span<const int> places, RankPlaces::Range range) {
  return index_of(places, range.end) - index_of(places, range.begin);
}

// The level of the smallest domain around `receiver` that contains an owner. `next` is the index of the
// first owner after the receiver. Domains are ranges, so only the adjacent owners on both sides matter.
int nearest_level(std::span<const int> owners, int next, const RankPlaces& places, int receiver) {
  const bool has_before = next > 0, has_after = next < static_cast<int>(owners.size());
  const int previous_owner = has_before ? owners[static_cast<std::size_t>(next) - 1] : 0;
  const int next_owner = has_after ? owners[static_cast<std::size_t>(next)] : 0;
  int level = 0;
  while (true) {
    const RankPlaces::Range domain = places.domain(level, receiver);
    if ((has_before && previous_owner >= domain.begin) || (has_after && next_owner < domain.end))
      return level;
    ++level;
  }
}

Fanout fanout_at(std::span<const int> owners, const RankPlaces& places, int level, int receiver) {
  const RankPlaces::Range domain = places.domain(level, receiver);
  const int first = index_of(owners, domain.begin);
  return {level, first, index_of(owners, domain.end) - first, 0};
}

}  // namespace

void split_receivers(std::span<const int> receivers, std::span<const int> owners, const RankPlaces& places,
                     Fanouts& result) {
  result.fanouts.clear(), result.needs.clear(), result.holders.clear();
  // Receivers are in ascending order and domains are nested ranges, so one domain per level is open at a
  // time.
  struct OpenDomain {
    int end = -1, fanout = 0;
  } open_domains[kMaxLevels + 1];
  for (const int receiver : receivers) {
    const int next = index_of(owners, receiver);
    if (next < static_cast<int>(owners.size()) && owners[static_cast<std::size_t>(next)] == receiver) {
      result.holders.push_back(receiver);
      continue;
    }
    const int level = nearest_level(owners, next, places, receiver);
    OpenDomain& current = open_domains[level];
    if (receiver >= current.end) {
      current = {places.domain(level, receiver).end, static_cast<int>(result.fanouts.size())};
      result.fanouts.push_back(fanout_at(owners, places, level, receiver));
    }
    Fanout& fanout = result.fanouts[static_cast<std::size_t>(current.fanout)];
    result.needs.push_back({receiver, current.fanout, fanout.num_receivers++});
  }
}

ReceiverFanout fanout_of(std::span<const int> receivers, std::span<const int> owners,
                         const RankPlaces& places, int receiver) {
  const int level = nearest_level(owners, index_of(owners, receiver), places, receiver);
  ReceiverFanout receiver_fanout{fanout_at(owners, places, level, receiver), 0};
  const RankPlaces::Range domain = places.domain(level, receiver);
  receiver_fanout.k = count_in(receivers, {domain.begin, receiver});
  receiver_fanout.fanout.num_receivers = count_in(receivers, domain);
  // A receiver with an owner in a smaller domain reads from that owner and is not counted here.
  for (int i = receiver_fanout.fanout.first_owner;
       i < receiver_fanout.fanout.first_owner + receiver_fanout.fanout.num_owners;) {
    const RankPlaces::Range smaller = places.domain(level - 1, owners[static_cast<std::size_t>(i)]);
    const int count = count_in(receivers, smaller);
    receiver_fanout.fanout.num_receivers -= count;
    if (smaller.end <= receiver) receiver_fanout.k -= count;
    i = std::max(i + 1, index_of(owners, smaller.end));
  }
  return receiver_fanout;
}

}  // namespace optimus
