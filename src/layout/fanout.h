// Fanout: determines which owner of a box sends it to which receiver. Every rank can evaluate the rule
// locally without exchanging or counting loads, so the share of one rank and the whole plan agree by
// construction.
//
// A receiver reads from the owners in the smallest domain that contains any owner (its node, its rack, ...).
// The receivers that share such a domain use its owners in turn:
//
//     owners      o0  o1  o2            receiver number k uses owner (k + round * receivers) mod owners
//     receivers   r0  r1  r2  r3  r4    round 0:  o0 <- r0 r3,  o1 <- r1 r4,  o2 <- r2
//                                       round 1:  o2 <- r0 r3,  o0 <- r1 r4,  o1 <- r2
//
// Rounds count the pieces that the same owners send (chunks, shards, tensors with equal placements), so the
// rotation continues from one piece to the next. Over any number of rounds with the same number of receivers,
// the loads of the owners in a domain differ by at most one piece. An owner may serve one domain at each
// level. Internal to src/layout.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "layout/rank_domains.h"

namespace optimus {

// The owners in one domain and the number of receivers that read from them.
struct Fanout {
  int level = 0;  // the distance between owners and receivers
  int first_owner = 0, num_owners = 0, num_receivers = 0;

  // The owner that receiver `k` reads from, as an index into the owners of the box.
  int owner(int k, std::int64_t round) const {
    return first_owner + static_cast<int>((k + round % num_owners * num_receivers) % num_owners);
  }
  // The inverse of owner(): the first receiver that reads from this owner. Every num_owners-th receiver after
  // it reads from the same owner.
  int first_receiver(int owner_index, std::int64_t round) const {
    const auto shift = static_cast<int>(round % num_owners * num_receivers % num_owners);
    return (owner_index - first_owner - shift + num_owners) % num_owners;
  }
};

struct FanoutNeed {
  int receiver = 0;  // the place of a rank (layout/rank_domains.h)
  int fanout = 0;    // index into Fanouts::fanouts
  int k = 0;         // index of the receiver in the fanout
};

struct Fanouts {
  std::vector<Fanout> fanouts;
  std::vector<FanoutNeed> needs;  // in ascending order of receivers
  std::vector<int> holders;       // places of the receivers that are also owners, in ascending order
};

// `receivers` and `owners` must be places in ascending order without duplicates. There must be at least one
// owner. O(receivers * log owners).
void split_receivers(std::span<const int> receivers, std::span<const int> owners, const RankPlaces& places,
                     Fanouts& result);

// Computes the result of split_receivers() for one receiver, which must not be an owner: the fanout that the
// receiver belongs to, and its index in that fanout. O(owners * log receivers).
struct ReceiverFanout {
  Fanout fanout;
  int k = 0;
};
ReceiverFanout fanout_of(std::span<const int> receivers, std::span<const int> owners,
                         const RankPlaces& places, int receiver);

}  // namespace optimus
