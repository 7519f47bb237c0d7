// Fanout: which owner of a box sends it to which receiver. A rule that every rank can apply alone: no loads
// are exchanged or counted, so one rank's share and the whole plan agree by construction.
//
// A receiver takes from the owners in the smallest domain that has any (its node, its rack, ...). The
// receivers that share such a domain take its owners in turn:
//
//     owners      o0  o1  o2            receiver number k takes owner (k + round * receivers) mod owners
//     receivers   r0  r1  r2  r3  r4    round 0:  o0 <- r0 r3,  o1 <- r1 r4,  o2 <- r2
//                                       round 1:  o2 <- r0 r3,  o0 <- r1 r4,  o1 <- r2
//
// Rounds count the pieces that the same owners have to give (chunks, shards, tensors that lie alike), so the
// turn goes on where the last piece stopped: over any number of rounds of equally many receivers, the owners
// of a domain differ by at most one piece. An owner may serve one domain of each level. Internal to
// src/layout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layout/rank_domains.h"

namespace optimus {

// Owners of one domain and how many take from them.
struct Fanout {
  int level = 0;  // the distance
  int first_owner = 0, num_owners = 0, num_receivers = 0;

  // Of receiver number k, as an index into the owners of the box.
  int owner(int k, std::int64_t round) const {
    return first_owner + static_cast<int>((k + round % num_owners * num_receivers) % num_owners);
  }
  // The other way round: the first k that takes this owner; every num_owners-th after it does too.
  int first_taker(int owner_index, std::int64_t round) const {
    const auto shift = static_cast<int>(round % num_owners * num_receivers % num_owners);
    return (owner_index - first_owner - shift + num_owners) % num_owners;
  }
};

struct FanoutNeed {
  int receiver = 0;  // a place
  int fanout = 0;    // index into Fanouts::fanouts
  int k = 0;         // the receiver's number in it
};

struct Fanouts {
  std::vector<Fanout> fanouts;
  std::vector<FanoutNeed> needs;  // ascending by receiver
  std::vector<int> holders;       // those of the receivers that are owners: places, ascending
};

// `receivers` and `owners` are places, ascending, without repetition; there is at least one owner.
// O(receivers * log owners).
void split_receivers(std::span<const int> receivers, std::span<const int> owners, const RankPlaces& places,
                     Fanouts& result);

// The same answer for one receiver that is no owner: its fanout and its number. O(owners * log receivers).
struct OwnFanout {
  Fanout fanout;
  int k = 0;
};
OwnFanout own_fanout(std::span<const int> receivers, std::span<const int> owners, const RankPlaces& places,
                     int receiver);

}  // namespace optimus
