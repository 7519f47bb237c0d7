// The share of one rank: extracted from a whole plan, or computed locally.
#include <algorithm>
#include <array>
#include <memory>
#include <tuple>

#include "layout/diff.h"
#include "layout/fanout.h"

namespace optimus {
namespace {

// An operation or a copy of one tensor, with the fields that determine its position in the global order of
// transfers. The struct is small, because a rank that gathers shards from thousands of others has hundreds
// of thousands of entries.
struct Entry {
  const TransferPieces* list = nullptr;
  int to_slot = 0, piece_index = 0, chunk = 0;
  int receiver = 0, peer = 0;  // places
  bool is_send = false;

  const TransferPiece& piece() const { return list->pieces[static_cast<std::size_t>(piece_index)]; }
  const Box& box() const { return list->boxes[static_cast<std::size_t>(piece().first_box + chunk)]; }
  std::array<std::int64_t, kMaxDims> corner() const {
    const Box& first = list->boxes[static_cast<std::size_t>(piece().first_box)];
    return {first[0].begin, first[1].begin, first[2].begin, first[3].begin};
  }
  friend bool operator<(const Entry& a, const Entry& b) {
    if (a.to_slot != b.to_slot) return a.to_slot < b.to_slot;
    if (a.list != b.list || a.piece_index != b.piece_index)
      if (const auto ca = a.corner(), cb = b.corner(); ca != cb) return ca < cb;
    return std::tie(a.chunk, a.receiver) < std::tie(b.chunk, b.receiver);
  }
};

struct TensorEntries {
  std::vector<Entry> copies, receives, sends;
};

class ShareBuilder {
 public:
  ShareBuilder(const LayoutChange& change, Rank rank)
      : change_(change),
        rank_(rank),
        own_place_(change.places.place_of(rank)),
        entries_(change.to.tensors.size()) {}

  DiffOutcome<RankShare> build(const WaveOrder& order) {
    const bool is_dead = change_.is_dead[static_cast<std::size_t>(rank_.value)];
    for (const LayoutChange::Kind& kind : change_.kinds) {
      for (const int slot : slots_of_rank(kind.to, change_.to_index, rank_)) receive(kind, slot);
      if (!is_dead) send(kind, slots_of_rank(kind.from, change_.from_index, rank_));
    }
    if (!lost_.empty()) return tl::unexpected(lost_failure(change_, std::move(lost_)));
    RankShare share{rank_, {}};
    for (const std::vector<int>& tensors : order.waves) {
      share.waves.push_back({tensors, {}, {}});
      for (const int tensor : tensors) write(tensor, share.waves.back());
    }
    return share;
  }

 private:
  void receive(const LayoutChange::Kind& kind, int slot) {
    const std::vector<int> receivers = receivers_of(change_, kind, slot);
    if (!std::binary_search(receivers.begin(), receivers.end(), own_place_)) return;
    TransferPieces& list = *lists_.emplace_back(std::make_unique<TransferPieces>());
    append_pieces(kind, change_.options.chunk, slot, kind.to.box(slot), list);
    for (int p = 0; p < static_cast<int>(list.pieces.size()); ++p) {
      if (!kind.has_shared_ranks) {
        receive_piece(kind, list, p, receivers);
        continue;
      }
      std::vector<int> unserved = receivers;
      remove_already_served(change_, kind, slot, whole_box(list, list.pieces[static_cast<std::size_t>(p)]),
                            unserved);
      if (std::binary_search(unserved.begin(), unserved.end(), own_place_))
        receive_piece(kind, list, p, unserved);
    }
  }

  void receive_piece(const LayoutChange::Kind& kind, const TransferPieces& list, int p,
                     std::span<const int> receivers) {
    const TransferPiece& piece = list.pieces[static_cast<std::size_t>(p)];
    const std::vector<int> owners = owners_of(change_, kind, list.sets[piece.owners]);
    if (owners.empty()) {
      for (const int tensor : kind.tensors) lost_.push_back({tensor, whole_box(list, piece)});
      return;
    }
    const bool is_owner = std::binary_search(owners.begin(), owners.end(), own_place_);
    const ReceiverFanout own_fanout =
        is_owner ? ReceiverFanout{} : fanout_of(receivers, owners, change_.places, own_place_);
    for (const int tensor : kind.tensors)
      for (int chunk = 0; chunk < piece.num_boxes; ++chunk) {
        Entry entry{&list, piece.to_slot, p, chunk, own_place_, own_place_, false};
        if (!is_owner)
          entry.peer = owners[static_cast<std::size_t>(
              own_fanout.fanout.owner(own_fanout.k, round(piece, tensor, chunk)))];
        TensorEntries& entries = entries_[static_cast<std::size_t>(tensor)];
        (is_owner ? entries.copies : entries.receives).push_back(entry);
      }
  }

  void send(const LayoutChange::Kind& kind, const std::vector<int>& my_slots) {
    if (my_slots.empty()) return;
    TransferPieces& list = *lists_.emplace_back(std::make_unique<TransferPieces>());
    std::vector<std::vector<int>> owners_of_set;
    for (const int slot : my_slots) {
      std::vector<SlotBox> receiving_slots;
      if (const Box box = kind.from.box(slot); !box.is_empty()) find_slots(kind.to, box, receiving_slots);
      for (const SlotBox& receiving_slot : receiving_slots) {
        const std::vector<int> receivers = receivers_of(change_, kind, receiving_slot.slot);
        if (receivers.empty()) continue;
        const int first = static_cast<int>(list.pieces.size());
        append_pieces(kind, change_.options.chunk, receiving_slot.slot, receiving_slot.box, list);
        while (static_cast<int>(owners_of_set.size()) < list.sets.size())
          owners_of_set.push_back(
              owners_of(change_, kind, list.sets[static_cast<int>(owners_of_set.size())]));
        for (int p = first; p < static_cast<int>(list.pieces.size()); ++p) {
          const int owners = list.pieces[static_cast<std::size_t>(p)].owners;
          if (first_common(list.sets[owners], my_slots) == slot)
            send_piece(kind, list, p, receivers, owners_of_set[static_cast<std::size_t>(owners)]);
        }
      }
    }
  }

  // A rank that holds a piece through several slots sends the piece once, for the first of these slots.
  static int first_common(std::span<const int> a, const std::vector<int>& b) {
    return *std::find_first_of(a.begin(), a.end(), b.begin(), b.end());
  }

  void send_piece(const LayoutChange::Kind& kind, const TransferPieces& list, int p,
                  std::vector<int> receivers, const std::vector<int>& owners) {
    const TransferPiece& piece = list.pieces[static_cast<std::size_t>(p)];
    if (kind.has_shared_ranks)
      remove_already_served(change_, kind, piece.to_slot, whole_box(list, piece), receivers);
    split_receivers(receivers, owners, change_.places, fanouts_);
    const int my_index =
        static_cast<int>(std::lower_bound(owners.begin(), owners.end(), own_place_) - owners.begin());
    for (int f = 0; f < static_cast<int>(fanouts_.fanouts.size()); ++f) {
      const Fanout& fanout = fanouts_.fanouts[static_cast<std::size_t>(f)];
      if (my_index < fanout.first_owner || my_index >= fanout.first_owner + fanout.num_owners) continue;
      std::vector<int> receivers_by_number;  // [k]: place of receiver k
      for (const FanoutNeed& need : fanouts_.needs)
        if (need.fanout == f) receivers_by_number.push_back(need.receiver);
      for (const int tensor : kind.tensors)
        for (int chunk = 0; chunk < piece.num_boxes; ++chunk) {
          const int first = fanout.first_receiver(my_index, round(piece, tensor, chunk));
          for (int k = first; k < fanout.num_receivers; k += fanout.num_owners) {
            const int receiver = receivers_by_number[static_cast<std::size_t>(k)];
            entries_[static_cast<std::size_t>(tensor)].sends.push_back(
                {&list, piece.to_slot, p, chunk, receiver, receiver, true});
          }
        }
    }
  }

  std::int64_t round(const TransferPiece& piece, int tensor, int chunk) const {
    return piece.round(change_.ordinal_of[static_cast<std::size_t>(tensor)], chunk);
  }

  void write(int tensor, RankShare::Wave& wave) {
    TensorEntries& entries = entries_[static_cast<std::size_t>(tensor)];
    for (auto* list : {&entries.copies, &entries.receives, &entries.sends})
      if (!std::is_sorted(list->begin(), list->end())) std::sort(list->begin(), list->end());
    for (const Entry& entry : entries.copies) wave.copies.push_back({tensor, entry.box()});
    const auto add = [&](const Entry& entry) {
      wave.operations.push_back({entry.is_send, tensor, change_.places.rank_at(entry.peer), entry.box()});
    };
    auto send = entries.sends.begin();
    for (const Entry& receive : entries.receives) {
      for (; send != entries.sends.end() && *send < receive; ++send) add(*send);
      add(receive);
    }
    for (; send != entries.sends.end(); ++send) add(*send);
  }

  const LayoutChange& change_;
  const Rank rank_;
  const int own_place_;
  std::vector<std::unique_ptr<TransferPieces>> lists_;
  std::vector<TensorEntries> entries_;  // [tensor]
  std::vector<TensorBox> lost_;
  Fanouts fanouts_;
};

}  // namespace

DiffOutcome<RankShare> diff_for(const LayoutChange& change, const WaveOrder& order, Rank rank) {
  ensure(rank.value >= 0 && rank.value < change.places.num_places(), "no layout contains rank {}",
         rank.value);
  return ShareBuilder(change, rank).build(order);
}

RankShare share_of(const TransferPlan& plan, Rank rank) {
  RankShare share{rank, {}};
  for (const TransferWave& wave : plan.waves) {
    RankShare::Wave& own_wave = share.waves.emplace_back(RankShare::Wave{wave.tensors, {}, {}});
    for (std::size_t i = wave.copies_begin; i < wave.copies_end; ++i)
      if (const LocalCopy& copy = plan.copies[i]; copy.rank == rank)
        own_wave.copies.push_back({copy.tensor, plan.boxes[static_cast<std::size_t>(copy.box)]});
    for (std::size_t i = wave.transfers_begin; i < wave.transfers_end; ++i) {
      const Transfer& transfer = plan.transfers[i];
      if (transfer.sender != rank && transfer.receiver != rank) continue;
      const bool is_send = transfer.sender == rank;
      own_wave.operations.push_back({is_send, transfer.tensor, is_send ? transfer.receiver : transfer.sender,
                                     plan.boxes[static_cast<std::size_t>(transfer.box)]});
    }
  }
  return share;
}

}  // namespace optimus
