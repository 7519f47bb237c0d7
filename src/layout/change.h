// LayoutChange: two layouts, prepared for diff, order_waves and diff_for. O(ranks + placements).
//
//   const LayoutChange change(from, to, {.reserve = Bytes(1 << 30)});
//   const auto order = order_waves(change);                // the same on every rank
//   const auto share = diff_for(change, *order, Rank{7});  // what rank 7 sends, receives and copies
//
// Its members, and what follows it here, are for the files of src/layout. Read next: layout/slots.h.
#pragma once

#include <vector>

#include "layout/diff.h"
#include "layout/kinds.h"
#include "layout/rank_domains.h"
#include "layout/slots.h"

namespace optimus {

struct LayoutChange {
  // Refers to both layouts, which must outlive it. Throws UserError when a layout or the topology is not
  // valid, the layouts do not list the same tensors in the same order, or `to` names a dead rank.
  LayoutChange(const Layout& from, const Layout& to, DiffOptions options);

  struct Kind {
    std::vector<int> tensors;
    int bytes_per_element = 0;
    Slots from, to;
    // Some rank may need more than one box of the tensor (a tied tensor that two blocks on the rank use).
    bool has_shared_ranks = false;
  };

  const Layout& from;
  const Layout& to;
  DiffOptions options;
  RankIndex from_index, to_index;
  RankPlaces places;
  std::vector<bool> is_dead;  // [rank]
  std::vector<Kind> kinds;
  std::vector<int> kind_of, ordinal_of;  // [tensor]
};

// A piece of a new box that has the same owners throughout, cut into chunks.
struct TransferPiece {
  int to_slot = 0;
  int owners = 0;  // index into PieceList::sets: slots of `from`
  int first_box = 0, num_boxes = 0;
  int turn = 0, num_turns = 1;  // among the new boxes that take from the same old box; for Fanout's rounds

  // Of chunk number `chunk` of the kind's tensor number `ordinal`.
  std::int64_t round(int ordinal, int chunk) const {
    return (static_cast<std::int64_t>(ordinal) * num_turns + turn) * num_boxes + chunk;
  }
};

struct TransferPieces {
  SlotSets sets;
  std::vector<TransferPiece> pieces;
  std::vector<Box> boxes;
};

// Appends the pieces of new box `to_slot` that lie in `region`, in lexicographic order.
void append_pieces(const LayoutChange::Kind& kind, Bytes chunk, int to_slot, const Box& region,
                   TransferPieces& list);

// The box of a piece before it was cut into chunks.
Box whole_box(const TransferPieces& list, const TransferPiece& piece);

// Places, ascending. Owners: the living holders of a set of slots of `from`. Receivers: the holders of a slot
// of `to`, except those that keep an equal box.
std::vector<int> owners_of(const LayoutChange& change, const LayoutChange::Kind& kind,
                           std::span<const int> from_slots);
std::vector<int> receivers_of(const LayoutChange& change, const LayoutChange::Kind& kind, int to_slot);
// Takes out the receivers to which an earlier one of their new boxes brings the piece already.
void remove_served(const LayoutChange& change, const LayoutChange::Kind& kind, int to_slot, const Box& piece,
                   std::vector<int>& receivers);
// Why there is no plan when these pieces have no living owner; at least one.
DiffFailure lost_failure(const LayoutChange& change, std::vector<HeldBox> lost);
// Distinct slots that a rank holds, ascending.
std::vector<int> slots_of_rank(const Slots& slots, const RankIndex& index, Rank rank);

}  // namespace optimus
