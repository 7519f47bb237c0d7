// LayoutChange: a pair of layouts, preprocessed for diff, order_waves and diff_for in O(ranks + placements).
//
//   const LayoutChange change(from, to, {.reserve = Bytes(1 << 30)});
//   const auto order = order_waves(change);                // the same on every rank
//   const auto share = diff_for(change, *order, Rank{7});  // what rank 7 sends, receives and copies
//
// Its members, and the other declarations in this header, are internal to src/layout. Read next:
// layout/slots.h.
#pragma once

#include <vector>

#include "layout/kinds.h"
#include "layout/rank_domains.h"
#include "layout/slots.h"
#include "layout/transfer_plan.h"

namespace optimus {

struct LayoutChange {
  // Keeps references to both layouts, which must outlive it. Throws a UserError if a layout or the topology
  // is invalid, the layouts do not list the same tensors in the same order, or `to` contains a dead rank.
  LayoutChange(const Layout& from, const Layout& to, DiffOptions options);

  struct Kind {
    std::vector<int> tensors;
    int bytes_per_element = 0;
    Slots from, to;
    // Whether a rank may need more than one box of the tensor (for instance a tied tensor that two blocks on
    // the rank use).
    bool has_shared_ranks = false;
  };

  const Layout& from;
  const Layout& to;
  DiffOptions options;
  RankIndex from_index, to_index;
  RankPlaces places;
  std::vector<bool> is_dead;  // [rank]
  std::vector<Kind> kinds;
  std::vector<int> kind_of, ordinal_of;  // [tensor]: kind of the tensor, and its index within the kind
};

// A region of a new box in which all elements have the same owners. It is split into chunks.
struct TransferPiece {
  int to_slot = 0;
  int owners = 0;  // index into TransferPieces::sets: the slots of `from` that contain the piece
  int first_box = 0, num_boxes = 0;
  // Position of the new box among all new boxes that read from the same old box. It determines the rounds of
  // Fanout.
  int turn = 0, num_turns = 1;

  // The round (layout/fanout.h) in which chunk `chunk` of tensor `ordinal` of the kind is sent.
  std::int64_t round(int ordinal, int chunk) const {
    return (static_cast<std::int64_t>(ordinal) * num_turns + turn) * num_boxes + chunk;
  }
};

struct TransferPieces {
  SlotSets sets;
  std::vector<TransferPiece> pieces;
  std::vector<Box> boxes;
};

// Appends the pieces of new box `to_slot` inside `region`, in lexicographic order.
void append_pieces(const LayoutChange::Kind& kind, Bytes chunk, int to_slot, const Box& region,
                   TransferPieces& list);

// The box of a piece before it was split into chunks.
Box whole_box(const TransferPieces& list, const TransferPiece& piece);

// owners_of() returns the live ranks that hold one of the slots `from_slots` of `from`. receivers_of()
// returns the ranks that hold slot `to_slot` of `to`, except those that already have an equal box. Both
// functions return places (layout/rank_domains.h) in ascending order.
std::vector<int> owners_of(const LayoutChange& change, const LayoutChange::Kind& kind,
                           std::span<const int> from_slots);
std::vector<int> receivers_of(const LayoutChange& change, const LayoutChange::Kind& kind, int to_slot);
// Removes the receivers that already receive the piece as part of one of their earlier new boxes.
void remove_already_served(const LayoutChange& change, const LayoutChange::Kind& kind, int to_slot,
                           const Box& piece, std::vector<int>& receivers);
// Returns the failure that reports boxes without a live owner. `lost` must not be empty.
DiffFailure lost_failure(const LayoutChange& change, std::vector<TensorBox> lost);
// The distinct slots that a rank holds, in ascending order.
std::vector<int> slots_of_rank(const Slots& slots, const RankIndex& index, Rank rank);

}  // namespace optimus
