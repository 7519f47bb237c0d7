// Prepares the two layouts of a change, and implements the queries that diff and diff_for share.
#include "layout/change.h"

#include <algorithm>
#include <array>
#include <utility>

namespace optimus {
namespace {

// Whether any rank is in two of the grids. `last_mark[rank]` is the mark of the last call that visited the
// rank.
bool share_ranks(const Slots& slots, const Layout& layout, int mark, std::vector<int>& last_mark) {
  int num_grids = 0;
  for (const Partition& partition : slots.partitions) num_grids += static_cast<int>(partition.grids.size());
  if (num_grids < 2) return false;
  for (const Partition& partition : slots.partitions)
    for (const int g : partition.grids)
      for (const Rank rank : layout.grids[static_cast<std::size_t>(g)].ranks)
        if (std::exchange(last_mark[static_cast<std::size_t>(rank.value)], mark) == mark) return true;
  return false;
}

std::vector<int> places_of(std::vector<Rank> ranks, const RankPlaces& places) {
  std::vector<int> result;
  result.reserve(ranks.size());
  for (const Rank rank : ranks) result.push_back(places.place_of(rank));
  if (!std::is_sorted(result.begin(), result.end())) std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

std::vector<bool> mark_ranks(const std::vector<Rank>& ranks, int num_ranks) {
  std::vector<bool> marks(static_cast<std::size_t>(num_ranks));
  for (const Rank rank : ranks)
    if (rank.value >= 0 && rank.value < num_ranks) marks[static_cast<std::size_t>(rank.value)] = true;
  return marks;
}

// The slots whose box is exactly `box`.
std::vector<int> equal_slots(const Slots& slots, const Box& box) {
  Box corner = box;
  for (int d = 0; d < box.num_dims; ++d) corner[d].end = corner[d].begin + 1;
  std::vector<SlotBox> candidates;
  find_slots(slots, corner, candidates);
  std::vector<int> equal;
  for (const SlotBox& slot : candidates)
    if (slots.box(slot.slot) == box) equal.push_back(slot.slot);
  return equal;
}

// Splits the box into equal chunks of whole rows, of about `chunk` bytes each.
void append_chunks(const Box& box, int bytes_per_element, Bytes chunk, std::vector<Box>& boxes) {
  const std::int64_t rows = box[0].size();
  const std::int64_t row_bytes = box.num_elements() / rows * bytes_per_element;
  std::int64_t rows_per_chunk = std::max<std::int64_t>(1, chunk.value / row_bytes);
  constexpr std::int64_t kMaxChunks = 4096;
  rows_per_chunk = std::max(rows_per_chunk, (rows + kMaxChunks - 1) / kMaxChunks);
  const std::int64_t num_chunks = (rows + rows_per_chunk - 1) / rows_per_chunk;
  for (std::int64_t i = 0; i < num_chunks; ++i) {
    Box piece = box;
    const Span chunk_span = shard_span(rows, static_cast<int>(num_chunks), static_cast<int>(i));
    piece[0] = {box[0].begin + chunk_span.begin, box[0].begin + chunk_span.end};
    boxes.push_back(piece);
  }
}

}  // namespace

LayoutChange::LayoutChange(const Layout& old_layout, const Layout& new_layout, DiffOptions diff_options)
    : from((validate_pair(old_layout, new_layout), old_layout)),
      to(new_layout),
      options(std::move(diff_options)),
      from_index(from),
      to_index(to),
      places(options.topology, std::max(from_index.num_ranks(), to_index.num_ranks())),
      is_dead(mark_ranks(options.dead, places.num_places())) {
  for (const Rank rank : options.dead)
    if (!to_index.positions(rank).empty())
      throw UserError("rank {} is dead, but the new layout contains it", rank.value);
  const std::array<const Layout*, 2> layouts{&from, &to};
  Kinds grouping = kinds_of(layouts);
  kind_of = std::move(grouping.kind_of);
  ordinal_of = std::move(grouping.ordinal_of);
  std::vector<int> last_mark(static_cast<std::size_t>(places.num_places()), -1);
  for (auto& tensors : grouping.tensors) {
    Kind kind{{},
              from.tensors[static_cast<std::size_t>(tensors[0])].bytes_per_element,
              slots_of(from, tensors[0]),
              slots_of(to, tensors[0]),
              false};
    kind.has_shared_ranks = share_ranks(kind.to, to, static_cast<int>(kinds.size()), last_mark);
    kind.tensors = std::move(tensors);
    kinds.push_back(std::move(kind));
  }
}

void append_pieces(const LayoutChange::Kind& kind, Bytes chunk, int to_slot, const Box& region,
                   TransferPieces& list) {
  std::vector<SlotCell> cells;
  append_cells(kind.from, kind.has_shared_ranks ? &kind.to : nullptr, region, list.sets, cells);
  for (const SlotCell& cell : cells) {
    TransferPiece piece{
        .to_slot = to_slot, .owners = cell.holders, .first_box = static_cast<int>(list.boxes.size())};
    append_chunks(cell.box, kind.bytes_per_element, chunk, list.boxes);
    piece.num_boxes = static_cast<int>(list.boxes.size()) - piece.first_box;
    if (const auto owners = list.sets[cell.holders]; !owners.empty()) {
      const SlotCount count = count_slots(kind.to, kind.from.box(owners[0]), to_slot);
      piece.turn = count.num_before, piece.num_turns = count.total;
    }
    list.pieces.push_back(piece);
  }
}

Box whole_box(const TransferPieces& list, const TransferPiece& piece) {
  Box box = list.boxes[static_cast<std::size_t>(piece.first_box)];
  box[0].end = list.boxes[static_cast<std::size_t>(piece.first_box + piece.num_boxes - 1)][0].end;
  return box;
}

std::vector<int> owners_of(const LayoutChange& change, const LayoutChange::Kind& kind,
                           std::span<const int> from_slots) {
  std::vector<Rank> ranks;
  for (const int slot : from_slots) append_holders(kind.from, slot, change.from, ranks);
  std::erase_if(ranks, [&](Rank rank) { return change.is_dead[static_cast<std::size_t>(rank.value)]; });
  return places_of(std::move(ranks), change.places);
}

std::vector<int> receivers_of(const LayoutChange& change, const LayoutChange::Kind& kind, int to_slot) {
  std::vector<Rank> ranks;
  append_holders(kind.to, to_slot, change.to, ranks);
  std::vector<int> receivers = places_of(std::move(ranks), change.places);
  const Box box = kind.to.box(to_slot);
  if (box.is_empty()) return {};
  const std::vector<int> equal_old_slots = equal_slots(kind.from, box);
  if (equal_old_slots.empty()) return receivers;
  const std::vector<int> owners_in_place = owners_of(change, kind, equal_old_slots);
  std::vector<int> result;
  std::set_difference(receivers.begin(), receivers.end(), owners_in_place.begin(), owners_in_place.end(),
                      std::back_inserter(result));
  return result;
}

void remove_already_served(const LayoutChange& change, const LayoutChange::Kind& kind, int to_slot,
                           const Box& piece, std::vector<int>& receivers) {
  std::erase_if(receivers, [&](int receiver) {
    const Rank rank = change.places.rank_at(receiver);
    const std::vector<int> old_slots = slots_of_rank(kind.from, change.from_index, rank);
    for (const int slot : slots_of_rank(kind.to, change.to_index, rank)) {
      if (slot >= to_slot) break;
      const Box box = kind.to.box(slot);
      const bool is_in_place = std::any_of(old_slots.begin(), old_slots.end(),
                                           [&](int old_slot) { return kind.from.box(old_slot) == box; });
      if (!is_in_place && box.contains(piece)) return true;
    }
    return false;
  });
}

std::vector<int> slots_of_rank(const Slots& slots, const RankIndex& index, Rank rank) {
  std::vector<int> result;
  for (const Partition& partition : slots.partitions)
    for (const RankIndex::GridPosition& position : index.positions(rank))
      if (const int slot = slot_of(partition, position); slot >= 0) result.push_back(slot);
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

DiffFailure lost_failure(const LayoutChange& change, std::vector<TensorBox> lost) {
  const auto comes_before = [](const TensorBox& a, const TensorBox& b) {
    return std::pair(a.tensor, a.box) < std::pair(b.tensor, b.box);
  };
  std::sort(lost.begin(), lost.end(), comes_before);
  lost.erase(std::unique(lost.begin(), lost.end()), lost.end());
  const TensorBox& first = lost.front();
  return {{fmt::format("no live rank holds {} of tensor {} (missing pieces: {})", text(first.box),
                       change.to.tensors[static_cast<std::size_t>(first.tensor)].name, lost.size())},
          std::move(lost),
          Bytes(0)};
}

}  // namespace optimus
