// Computes the whole plan. The transfers are computed once for each kind of tensor, as a pattern. All tensors
// of the kind repeat the pattern, each with a different rotation of the senders.
#include "layout/diff.h"

#include <algorithm>
#include <memory>

#include "layout/fanout.h"

namespace optimus {
namespace {

// The pieces of tensors that are split in the same way, regardless of the ranks that hold them. Their boxes
// start at `first_box` in the plan's table.
struct Geometry {
  const LayoutChange::Kind* kind = nullptr;
  TransferPieces list;  // pieces in ascending order of to_slot; their boxes have been moved into the plan
  int first_box = 0;
};

struct PatternPiece {
  const TransferPiece* piece = nullptr;
  int first_owner = 0;  // index into Pattern::owners
  int first_fanout = 0, num_fanouts = 0, first_need = 0, num_needs = 0, first_holder = 0, num_holders = 0;
};

// The ranks that need each piece of a tensor, and the owners that can send it. All tensors of one kind
// (LayoutChange::Kind) have the same pattern.
struct Pattern {
  int first_box = 0;
  std::vector<PatternPiece> pieces;
  std::vector<int> owners;  // places of the live ranks that hold each piece
  std::vector<Fanout> fanouts;
  std::vector<FanoutNeed> needs;
  std::vector<int> holders;
};

class GeometryTable {
 public:
  GeometryTable(const LayoutChange& change, std::vector<Box>& boxes) : change_(change), boxes_(boxes) {}

  const Geometry& of(const LayoutChange::Kind& kind) {
    for (const auto& known : geometries_)
      if (is_same(*known->kind, kind)) return *known;
    auto geometry = std::make_unique<Geometry>(Geometry{&kind, {}, static_cast<int>(boxes_.size())});
    for (int slot = 0; slot < kind.to.num_slots(); ++slot)
      append_pieces(kind, change_.options.chunk, slot, kind.to.box(slot), geometry->list);
    boxes_.insert(boxes_.end(), geometry->list.boxes.begin(), geometry->list.boxes.end());
    return *geometries_.emplace_back(std::move(geometry));
  }

 private:
  static bool is_same(const LayoutChange::Kind& a, const LayoutChange::Kind& b) {
    return a.bytes_per_element == b.bytes_per_element && a.has_shared_ranks == b.has_shared_ranks &&
           a.from.has_same_splits(b.from) && a.to.has_same_splits(b.to);
  }
  const LayoutChange& change_;
  std::vector<Box>& boxes_;
  std::vector<std::unique_ptr<Geometry>> geometries_;
};

class PatternBuilder {
 public:
  PatternBuilder(const LayoutChange& change, const LayoutChange::Kind& kind, const Geometry& geometry)
      : change_(change), kind_(kind), list_(geometry.list) {
    pattern_.first_box = geometry.first_box;
    owners_of_set_.resize(static_cast<std::size_t>(list_.sets.size()), {-1, 0});
  }

  // Appends needed pieces without a live owner to `lost`.
  Pattern build(std::vector<Box>& lost) {
    std::vector<int> receivers, own_receivers;
    int slot = -1;
    for (const TransferPiece& piece : list_.pieces) {
      if (piece.to_slot != slot) receivers = receivers_of(change_, kind_, slot = piece.to_slot);
      if (receivers.empty()) continue;
      if (is_too_large()) break;
      const Box box = whole_box(list_, piece);
      const auto owners = owners_of_set(piece.owners);
      if (owners.empty()) {
        lost.push_back(box);
      } else if (kind_.has_shared_ranks) {
        own_receivers = receivers;
        remove_already_served(change_, kind_, slot, box, own_receivers);
        add(piece, own_receivers, owners);
      } else {
        add(piece, receivers, owners);
      }
    }
    return std::move(pattern_);
  }

 private:
  // If this is true, the caller reports a failure, so the pattern may be incomplete.
  bool is_too_large() const {
    return static_cast<std::int64_t>(pattern_.needs.size() + pattern_.holders.size()) > kMaxTransfers;
  }

  struct Range {
    int begin, size;
  };
  std::span<const int> owners_of_set(int set) {
    Range& range = owners_of_set_[static_cast<std::size_t>(set)];
    if (range.begin < 0) {
      const std::vector<int> owners = owners_of(change_, kind_, list_.sets[set]);
      range = {static_cast<int>(pattern_.owners.size()), static_cast<int>(owners.size())};
      pattern_.owners.insert(pattern_.owners.end(), owners.begin(), owners.end());
    }
    return std::span(pattern_.owners)
        .subspan(static_cast<std::size_t>(range.begin), static_cast<std::size_t>(range.size));
  }

  void add(const TransferPiece& piece, std::span<const int> receivers, std::span<const int> owners) {
    split_receivers(receivers, owners, change_.places, fanouts_);
    const auto append = [](auto& list, const auto& items, int& first, int& size) {
      first = static_cast<int>(list.size()), size = static_cast<int>(items.size());
      list.insert(list.end(), items.begin(), items.end());
    };
    PatternPiece pattern_piece{.piece = &piece,
                               .first_owner = static_cast<int>(owners.data() - pattern_.owners.data())};
    append(pattern_.fanouts, fanouts_.fanouts, pattern_piece.first_fanout, pattern_piece.num_fanouts);
    append(pattern_.needs, fanouts_.needs, pattern_piece.first_need, pattern_piece.num_needs);
    append(pattern_.holders, fanouts_.holders, pattern_piece.first_holder, pattern_piece.num_holders);
    pattern_.pieces.push_back(pattern_piece);
  }

  const LayoutChange& change_;
  const LayoutChange::Kind& kind_;
  const TransferPieces& list_;
  Pattern pattern_;
  std::vector<Range> owners_of_set_;
  Fanouts fanouts_;
};

// Converts patterns into transfers and accumulates the statistics.
class PlanWriter {
 public:
  PlanWriter(const LayoutChange& change, TransferPlan& plan)
      : change_(change),
        plan_(plan),
        sent_(static_cast<std::size_t>(change.places.num_places())),
        received_(sent_) {
    plan_.moved_at.resize(static_cast<std::size_t>(change.places.num_levels()));
  }

  void write(const Pattern& pattern, int tensor) {
    const int ordinal = change_.ordinal_of[static_cast<std::size_t>(tensor)];
    const int bytes_per_element = change_.from.tensors[static_cast<std::size_t>(tensor)].bytes_per_element;
    for (const PatternPiece& piece : pattern.pieces)
      for (int chunk = 0; chunk < piece.piece->num_boxes; ++chunk) {
        const int box = pattern.first_box + piece.piece->first_box + chunk;
        const std::int64_t bytes =
            plan_.boxes[static_cast<std::size_t>(box)].num_elements() * bytes_per_element;
        write_transfers(pattern, piece, tensor, box, piece.piece->round(ordinal, chunk), bytes);
        for (int i = piece.first_holder; i < piece.first_holder + piece.num_holders; ++i)
          plan_.copies.push_back({tensor, box, rank_at(pattern.holders, i)});
      }
  }

  void finish() {
    const auto maximum = [](const std::vector<std::int64_t>& bytes) {
      return Bytes(bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end()));
    };
    plan_.max_sent = maximum(sent_), plan_.max_received = maximum(received_);
    for (const Bytes bytes : plan_.moved_at) plan_.moved += bytes;
  }

 private:
  Rank rank_at(const std::vector<int>& places, int index) const {
    return change_.places.rank_at(places[static_cast<std::size_t>(index)]);
  }

  void write_transfers(const Pattern& pattern, const PatternPiece& piece, int tensor, int box,
                       std::int64_t round, std::int64_t bytes) {
    for (int i = piece.first_need; i < piece.first_need + piece.num_needs; ++i) {
      const FanoutNeed& need = pattern.needs[static_cast<std::size_t>(i)];
      const Fanout& fanout = pattern.fanouts[static_cast<std::size_t>(piece.first_fanout + need.fanout)];
      const int owner =
          pattern.owners[static_cast<std::size_t>(piece.first_owner + fanout.owner(need.k, round))];
      plan_.transfers.push_back(
          {tensor, box, change_.places.rank_at(owner), change_.places.rank_at(need.receiver)});
      sent_[static_cast<std::size_t>(owner)] += bytes;
      received_[static_cast<std::size_t>(need.receiver)] += bytes;
      plan_.moved_at[static_cast<std::size_t>(fanout.level)] += Bytes(bytes);
    }
  }

  const LayoutChange& change_;
  TransferPlan& plan_;
  std::vector<std::int64_t> sent_, received_;  // [place]: bytes
};

std::int64_t num_transfers(const Pattern& pattern) {
  std::int64_t count = 0;
  for (const PatternPiece& piece : pattern.pieces)
    count += static_cast<std::int64_t>(piece.num_needs + piece.num_holders) * piece.piece->num_boxes;
  return count;
}

}  // namespace

DiffOutcome<TransferPlan> diff(const LayoutChange& change, const WaveOrder& order) {
  TransferPlan plan;
  plan.reserve = order.reserve, plan.lower_bound = order.lower_bound,
  plan.full_fetch_bytes = order.full_fetch_bytes;
  GeometryTable geometries(change, plan.boxes);
  std::vector<Pattern> patterns;
  std::vector<TensorBox> lost;
  std::int64_t count = 0;
  for (const LayoutChange::Kind& kind : change.kinds) {
    std::vector<Box> lost_boxes;
    patterns.push_back(PatternBuilder(change, kind, geometries.of(kind)).build(lost_boxes));
    for (const Box& box : lost_boxes)
      for (const int tensor : kind.tensors) lost.push_back({tensor, box});
    count += num_transfers(patterns.back()) * static_cast<std::int64_t>(kind.tensors.size());
    if (count > kMaxTransfers)
      return tl::unexpected(DiffFailure{
          {fmt::format("the plan has more than {} transfers; compute the share of one rank at a time",
                       kMaxTransfers)},
          {},
          Bytes(0)});
  }
  if (!lost.empty()) return tl::unexpected(lost_failure(change, std::move(lost)));

  plan.transfers.reserve(static_cast<std::size_t>(count));
  PlanWriter writer(change, plan);
  for (const std::vector<int>& tensors : order.waves) {
    TransferWave wave{tensors, plan.transfers.size(), 0, plan.copies.size(), 0};
    for (const int tensor : tensors)
      writer.write(patterns[static_cast<std::size_t>(change.kind_of[static_cast<std::size_t>(tensor)])],
                   tensor);
    wave.transfers_end = plan.transfers.size(), wave.copies_end = plan.copies.size();
    plan.waves.push_back(std::move(wave));
  }
  writer.finish();
  return plan;
}

DiffOutcome<TransferPlan> diff(const Layout& from, const Layout& to, const DiffOptions& options) {
  const LayoutChange change(from, to, options);
  const auto order = order_waves(change);
  if (!order) return tl::unexpected(order.error());
  return diff(change, *order);
}

}  // namespace optimus
