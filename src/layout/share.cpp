// One rank's share of a plan: cut out of a whole plan, or worked out alone.
#include <algorithm>
#include <tuple>

#include "layout/change.h"
#include "layout/diff.h"
#include "layout/fanout.h"

namespace optimus {
namespace {

// An operation (or a copy) with its place in the order of all transfers.
struct Ordered {
  int wave = 0, position = 0;  // of the tensor
  int to_slot = 0;
  Box piece;
  int chunk = 0;     // of the piece
  int receiver = 0;  // a place
  RankShare::Operation operation;

  friend bool operator<(const Ordered& a, const Ordered& b) {
    return std::tie(a.wave, a.position, a.to_slot, a.piece, a.chunk, a.receiver) <
           std::tie(b.wave, b.position, b.to_slot, b.piece, b.chunk, b.receiver);
  }
};

class ShareBuilder {
 public:
  ShareBuilder(const Change& change, const WaveOrder& order, Rank rank)
      : change_(change),
        rank_(rank),
        me_(change.places.place_of(rank)),
        when_(change.to.tensors.size(), {-1, 0}) {
    share_.rank = rank;
    for (const std::vector<int>& tensors : order.waves) {
      for (int i = 0; i < static_cast<int>(tensors.size()); ++i)
        when_[static_cast<std::size_t>(tensors[static_cast<std::size_t>(i)])] = {
            static_cast<int>(share_.waves.size()), i};
      share_.waves.push_back({tensors, {}, {}});
    }
  }

  DiffOutcome<RankShare> build() {
    const bool is_dead = change_.is_dead[static_cast<std::size_t>(rank_.value)];
    for (const Change::Kind& kind : change_.kinds) {
      for (const int slot : slots_of_rank(kind.to, change_.to_index, rank_)) receive(kind, slot);
      if (!is_dead) send(kind, slots_of_rank(kind.from, change_.from_index, rank_));
    }
    if (!lost_.empty()) return tl::unexpected(lost_failure(change_, std::move(lost_)));
    std::sort(operations_.begin(), operations_.end());
    std::sort(copies_.begin(), copies_.end());
    for (const Ordered& at : operations_) wave(at).operations.push_back(at.operation);
    for (const Ordered& at : copies_) wave(at).copies.push_back({at.operation.tensor, at.operation.box});
    return std::move(share_);
  }

 private:
  struct When {
    int wave, position;
  };

  void receive(const Change::Kind& kind, int slot) {
    const std::vector<int> receivers = receivers_of(change_, kind, slot);
    if (!std::binary_search(receivers.begin(), receivers.end(), me_)) return;
    PieceList list;
    append_pieces(kind, change_.options.chunk, slot, kind.to.box(slot), list);
    for (const Piece& piece : list.pieces) {
      if (!kind.has_shared_ranks) {
        receive_piece(kind, list, piece, receivers);
        continue;
      }
      std::vector<int> unserved = receivers;
      remove_served(change_, kind, slot, whole_box(list, piece), unserved);
      if (std::binary_search(unserved.begin(), unserved.end(), me_))
        receive_piece(kind, list, piece, unserved);
    }
  }

  void receive_piece(const Change::Kind& kind, const PieceList& list, const Piece& piece,
                     std::span<const int> receivers) {
    const std::vector<int> owners = owners_of(change_, kind, list.sets[piece.owners]);
    if (owners.empty()) {
      for (const int tensor : kind.tensors) lost_.push_back({tensor, whole_box(list, piece)});
    } else if (std::binary_search(owners.begin(), owners.end(), me_)) {
      for (const int tensor : kind.tensors)
        for (int chunk = 0; chunk < piece.num_boxes; ++chunk)
          copies_.push_back(ordered(list, piece, chunk, tensor, me_, false, rank_));
    } else {
      const OwnFanout own = own_fanout(receivers, owners, change_.places, me_);
      for (const int tensor : kind.tensors)
        for (int chunk = 0; chunk < piece.num_boxes; ++chunk) {
          const int sender =
              owners[static_cast<std::size_t>(own.fanout.owner(own.k, round(piece, tensor, chunk)))];
          operations_.push_back(
              ordered(list, piece, chunk, tensor, me_, false, change_.places.rank_at(sender)));
        }
    }
  }

  void send(const Change::Kind& kind, const std::vector<int>& my_slots) {
    PieceList list;
    std::vector<std::vector<int>> owners_of_set;
    for (const int slot : my_slots) {
      std::vector<SlotBox> takers;
      if (const Box box = kind.from.box(slot); !box.is_empty()) find_slots(kind.to, box, takers);
      for (const SlotBox& taker : takers) {
        const std::vector<int> receivers = receivers_of(change_, kind, taker.slot);
        if (receivers.empty()) continue;
        const std::size_t first = list.pieces.size();
        append_pieces(kind, change_.options.chunk, taker.slot, taker.box, list);
        while (static_cast<int>(owners_of_set.size()) < list.sets.size())
          owners_of_set.push_back(
              owners_of(change_, kind, list.sets[static_cast<int>(owners_of_set.size())]));
        for (std::size_t p = first; p < list.pieces.size(); ++p) {
          const Piece& piece = list.pieces[p];
          if (first_common(list.sets[piece.owners], my_slots) == slot)
            send_piece(kind, list, piece, receivers, owners_of_set[static_cast<std::size_t>(piece.owners)]);
        }
      }
    }
  }

  // Where the rank holds a piece by several slots, it is to be sent once.
  static int first_common(std::span<const int> a, const std::vector<int>& b) {
    return *std::find_first_of(a.begin(), a.end(), b.begin(), b.end());
  }

  void send_piece(const Change::Kind& kind, const PieceList& list, const Piece& piece,
                  std::vector<int> receivers, const std::vector<int>& owners) {
    if (kind.has_shared_ranks) remove_served(change_, kind, piece.to_slot, whole_box(list, piece), receivers);
    split_receivers(receivers, owners, change_.places, fanouts_);
    const int my_index =
        static_cast<int>(std::lower_bound(owners.begin(), owners.end(), me_) - owners.begin());
    for (int f = 0; f < static_cast<int>(fanouts_.fanouts.size()); ++f) {
      const Fanout& fanout = fanouts_.fanouts[static_cast<std::size_t>(f)];
      if (my_index < fanout.first_owner || my_index >= fanout.first_owner + fanout.num_owners) continue;
      std::vector<int> in_turn;  // by k
      for (const Need& need : fanouts_.needs)
        if (need.fanout == f) in_turn.push_back(need.receiver);
      for (const int tensor : kind.tensors)
        for (int chunk = 0; chunk < piece.num_boxes; ++chunk) {
          const int first = fanout.first_taker(my_index, round(piece, tensor, chunk));
          for (int k = first; k < fanout.num_receivers; k += fanout.num_owners) {
            const int receiver = in_turn[static_cast<std::size_t>(k)];
            operations_.push_back(
                ordered(list, piece, chunk, tensor, receiver, true, change_.places.rank_at(receiver)));
          }
        }
    }
  }

  std::int64_t round(const Piece& piece, int tensor, int chunk) const {
    return piece.round(change_.ordinal_of[static_cast<std::size_t>(tensor)], chunk);
  }
  Ordered ordered(const PieceList& list, const Piece& piece, int chunk, int tensor, int receiver,
                  bool is_send, Rank peer) const {
    const When& when = when_[static_cast<std::size_t>(tensor)];
    return {when.wave,
            when.position,
            piece.to_slot,
            whole_box(list, piece),
            chunk,
            receiver,
            {is_send, tensor, peer, list.boxes[static_cast<std::size_t>(piece.first_box + chunk)]}};
  }
  RankShare::Wave& wave(const Ordered& at) { return share_.waves[static_cast<std::size_t>(at.wave)]; }

  const Change& change_;
  const Rank rank_;
  const int me_;
  std::vector<When> when_;  // [tensor]
  RankShare share_;
  std::vector<Ordered> operations_, copies_;
  std::vector<HeldBox> lost_;
  Fanouts fanouts_;
};

}  // namespace

DiffOutcome<RankShare> diff_for(const Change& change, const WaveOrder& order, Rank rank) {
  ensure(rank.value >= 0 && rank.value < change.places.num_places(), "no layout names rank {}", rank.value);
  return ShareBuilder(change, order, rank).build();
}

RankShare share_of(const TransferPlan& plan, Rank rank) {
  RankShare share{rank, {}};
  for (const Wave& wave : plan.waves) {
    RankShare::Wave& mine = share.waves.emplace_back(RankShare::Wave{wave.tensors, {}, {}});
    for (std::size_t i = wave.copies_begin; i < wave.copies_end; ++i)
      if (const LocalCopy& copy = plan.copies[i]; copy.rank == rank)
        mine.copies.push_back({copy.tensor, plan.boxes[static_cast<std::size_t>(copy.box)]});
    for (std::size_t i = wave.transfers_begin; i < wave.transfers_end; ++i) {
      const Transfer& transfer = plan.transfers[i];
      if (transfer.sender != rank && transfer.receiver != rank) continue;
      const bool is_send = transfer.sender == rank;
      mine.operations.push_back({is_send, transfer.tensor, is_send ? transfer.receiver : transfer.sender,
                                 plan.boxes[static_cast<std::size_t>(transfer.box)]});
    }
  }
  return share;
}

}  // namespace optimus
