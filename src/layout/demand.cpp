// Computes the memory demands in one pass over the ranks for each kind of tensor.
#include "layout/demand.h"

#include <algorithm>
#include <unordered_map>

namespace optimus {
namespace {

constexpr int kNone = -1, kSeveral = -2;

// The slots of a tensor that one rank holds before and after the change.
struct Holding {
  int rank = 0, from = kNone, to = kNone;
};

// Collects which slots each rank holds, for one kind of tensor. The buffers are reused for the next kind.
class HoldingCollector {
 public:
  explicit HoldingCollector(int num_ranks) : index_of_(static_cast<std::size_t>(num_ranks), kNone) {}

  const std::vector<Holding>& collect(const LayoutChange& change, const LayoutChange::Kind& kind) {
    if (last_kind_ != nullptr && have_equal_grids(last_kind_->from, kind.from) &&
        have_equal_grids(last_kind_->to, kind.to))
      return holdings_;
    last_kind_ = &kind;
    for (const Holding& old : holdings_) index_of_[static_cast<std::size_t>(old.rank)] = kNone;
    holdings_.clear();
    visit(kind.from, change.from, &Holding::from);
    visit(kind.to, change.to, &Holding::to);
    return holdings_;
  }

 private:
  // Whether both tensors have the same grids and counts, so that each rank holds the same slots of both. This
  // is true for most matrices of a layer, so their slots are collected only once.
  static bool have_equal_grids(const Slots& a, const Slots& b) {
    return std::equal(a.partitions.begin(), a.partitions.end(), b.partitions.begin(), b.partitions.end(),
                      [](const Partition& p, const Partition& q) {
                        return p.num_shards == q.num_shards && p.num_parts == q.num_parts &&
                               (p.split_dim < 0) == (q.split_dim < 0) && p.grids == q.grids;
                      });
  }

  void visit(const Slots& slots, const Layout& layout, int Holding::*side) {
    for (const Partition& partition : slots.partitions)
      for (const int g : partition.grids) {
        const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(g)];
        for (int part = 0; part < grid.num_parts; ++part)  // slot by slot, for cache efficiency
          for (int shard = 0; shard < grid.num_shards; ++shard) {
            const int part_slot = partition.split_dim < 0 ? 0 : part * partition.num_shards;
            const int slot_id = partition.first_slot + part_slot + shard;
            for (int replica = 0; replica < grid.num_replicas; ++replica) {
              int& slot = holding(grid.at(replica, shard, part).value).*side;
              slot = slot == kNone ? slot_id : kSeveral;
            }
          }
      }
  }
  Holding& holding(int rank) {
    int& index = index_of_[static_cast<std::size_t>(rank)];
    if (index == kNone) {
      index = static_cast<int>(holdings_.size());
      holdings_.push_back({rank, kNone, kNone});
    }
    return holdings_[static_cast<std::size_t>(index)];
  }

  const LayoutChange::Kind* last_kind_ = nullptr;
  std::vector<int> index_of_;  // [rank]: index into holdings_
  std::vector<Holding> holdings_;
};

// The elements of one tensor that one rank allocates, frees, does not have yet, and needs in total.
struct ElementCounts {
  std::int64_t allocated = 0, freed = 0, missing = 0, needed = 0;
};

// The boxes of all slots of tensors that are split in the same way.
struct SlotBoxes {
  const LayoutChange::Kind* kind = nullptr;
  std::vector<Box> from, to;
  std::vector<std::int64_t> from_sizes, to_sizes;
};

SlotBoxes boxes_of_kind(const LayoutChange::Kind& kind) {
  SlotBoxes boxes{&kind, {}, {}, {}, {}};
  for (int slot = 0; slot < kind.from.num_slots(); ++slot) boxes.from.push_back(kind.from.box(slot));
  for (int slot = 0; slot < kind.to.num_slots(); ++slot) boxes.to.push_back(kind.to.box(slot));
  for (const Box& box : boxes.from) boxes.from_sizes.push_back(box.num_elements());
  for (const Box& box : boxes.to) boxes.to_sizes.push_back(box.num_elements());
  return boxes;
}

ElementCounts counts_of_one_box(const Holding& holding, const SlotBoxes& boxes) {
  const auto from = static_cast<std::size_t>(holding.from), to = static_cast<std::size_t>(holding.to);
  ElementCounts counts;
  if (holding.from != kNone) counts.freed = boxes.from_sizes[from];
  if (holding.to == kNone) return counts;
  counts.allocated = counts.missing = counts.needed = boxes.to_sizes[to];
  if (holding.from == kNone) return counts;
  if (const auto common = intersect(boxes.from[from], boxes.to[to])) counts.missing -= common->num_elements();
  // The old box equals the new box, so it stays in place.
  if (counts.missing == 0 && counts.freed == counts.allocated) counts.freed = counts.allocated = 0;
  return counts;
}

// The number of elements that are in the union of `boxes` but not in `holes`. Splits `region` along all
// edges.
std::int64_t count_elements(const std::vector<Box>& boxes, const std::vector<Box>& holes, Box region,
                            int dim) {
  const auto contain = [&](const std::vector<Box>& list) {
    return std::any_of(list.begin(), list.end(), [&](const Box& box) { return box.contains(region); });
  };
  if (dim == region.num_dims) return contain(boxes) && !contain(holes) ? region.num_elements() : 0;
  std::vector<std::int64_t> edges{region[dim].begin, region[dim].end};
  for (const auto* list : {&boxes, &holes})
    for (const Box& box : *list) edges.push_back(box[dim].begin), edges.push_back(box[dim].end);
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  std::int64_t count = 0;
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
    region[dim] = {edges[i], edges[i + 1]};
    count += count_elements(boxes, holes, region, dim + 1);
  }
  return count;
}

// The counts for the rare case of a rank that holds several boxes of one tensor.
ElementCounts counts_of_boxes(const LayoutChange& change, const LayoutChange::Kind& kind, int rank,
                              const SlotBoxes& boxes) {
  std::vector<Box> from, to;
  for (const int slot : slots_of_rank(kind.from, change.from_index, Rank{rank}))
    from.push_back(boxes.from[static_cast<std::size_t>(slot)]);
  for (const int slot : slots_of_rank(kind.to, change.to_index, Rank{rank}))
    to.push_back(boxes.to[static_cast<std::size_t>(slot)]);
  for (auto* list : {&from, &to}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  ElementCounts counts;
  for (const Box& box : from)
    if (std::find(to.begin(), to.end(), box) == to.end()) counts.freed += box.num_elements();
  for (const Box& box : to)
    if (std::find(from.begin(), from.end(), box) == from.end()) counts.allocated += box.num_elements();
  counts.missing = count_elements(to, from, Box(kind.to.shape), 0);
  counts.needed = count_elements(to, {}, Box(kind.to.shape), 0);
  return counts;
}

// Splits a class of ranks whenever two of its ranks have different demands. Each class refers to the class
// that it was split from and stores the demand that caused the split.
class ClassRefiner {
 public:
  explicit ClassRefiner(int num_ranks)
      : class_of_(static_cast<std::size_t>(num_ranks)), splits_{{-1, -1, 0, 0}} {}

  void refine(int rank, int kind, std::int64_t allocated, std::int64_t freed) {
    int& rank_class = class_of_[static_cast<std::size_t>(rank)];
    const Split split{rank_class, kind, allocated, freed};
    if (!(split == splits_[static_cast<std::size_t>(last_class_)])) {
      const auto [known, is_new] = class_of_split_.try_emplace(split, static_cast<int>(splits_.size()));
      if (is_new) splits_.push_back(split);
      last_class_ = known->second;
    }
    rank_class = last_class_;
  }

  // Writes the classes that contain ranks, renumbered without gaps.
  void write(MemoryDemands& demands) const {
    std::vector<bool> is_done(splits_.size());
    for (const int rank_class : class_of_) {
      if (is_done[static_cast<std::size_t>(rank_class)]) continue;
      is_done[static_cast<std::size_t>(rank_class)] = true;
      for (int at = rank_class; at > 0; at = splits_[static_cast<std::size_t>(at)].parent) {
        const Split& split = splits_[static_cast<std::size_t>(at)];
        demands.of_kind[static_cast<std::size_t>(split.kind)].push_back(
            {demands.num_classes, split.allocated, split.freed});
      }
      ++demands.num_classes;
    }
  }

 private:
  struct Split {
    int parent, kind;
    std::int64_t allocated, freed;
    bool operator==(const Split&) const = default;
  };
  struct SplitHash {
    std::size_t operator()(const Split& split) const {
      std::uint64_t hash = 0;
      for (const std::int64_t number :
           {std::int64_t{split.parent}, std::int64_t{split.kind}, split.allocated, split.freed})
        hash = (hash ^ static_cast<std::uint64_t>(number)) * 0x9e3779b97f4a7c15ULL, hash ^= hash >> 29;
      return hash;
    }
  };
  std::vector<int> class_of_;  // [rank]; 0 for a rank without a demand so far
  std::vector<Split> splits_;  // [class]
  std::unordered_map<Split, int, SplitHash> class_of_split_;
  int last_class_ = 0;
};

}  // namespace

MemoryDemands demands_of(const LayoutChange& change) {
  MemoryDemands demands;
  demands.of_kind.resize(change.kinds.size());
  HoldingCollector collector(change.places.num_places());
  ClassRefiner refiner(change.places.num_places());
  std::vector<SlotBoxes> known_boxes;
  for (int k = 0; k < static_cast<int>(change.kinds.size()); ++k) {
    const LayoutChange::Kind& kind = change.kinds[static_cast<std::size_t>(k)];
    auto boxes = std::find_if(known_boxes.begin(), known_boxes.end(), [&](const SlotBoxes& known) {
      return known.kind->from.has_same_splits(kind.from) && known.kind->to.has_same_splits(kind.to);
    });
    if (boxes == known_boxes.end()) boxes = known_boxes.insert(boxes, boxes_of_kind(kind));
    const std::int64_t bytes = kind.bytes_per_element;
    std::int64_t missing = 0, needed = 0;
    for (const Holding& holding : collector.collect(change, kind)) {
      if (change.is_dead[static_cast<std::size_t>(holding.rank)]) continue;
      const bool is_simple = holding.from != kSeveral && holding.to != kSeveral;
      const ElementCounts counts = is_simple ? counts_of_one_box(holding, *boxes)
                                             : counts_of_boxes(change, kind, holding.rank, *boxes);
      missing += counts.missing, needed += counts.needed;
      if (counts.allocated != 0 || counts.freed != 0)
        refiner.refine(holding.rank, k, counts.allocated * bytes, counts.freed * bytes);
    }
    demands.lower_bound += Bytes(missing * bytes * static_cast<std::int64_t>(kind.tensors.size()));
    demands.full_fetch_bytes += Bytes(needed * bytes * static_cast<std::int64_t>(kind.tensors.size()));
  }
  refiner.write(demands);
  return demands;
}

}  // namespace optimus
