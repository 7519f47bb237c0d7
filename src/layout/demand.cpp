// One pass over the ranks of every kind of tensor.
#include "layout/demand.h"

#include <algorithm>
#include <unordered_map>

namespace optimus {
namespace {

constexpr int kNone = -1, kSeveral = -2;

// What one rank holds of a tensor before and after, as slots.
struct Holding {
  int rank = 0, from = kNone, to = kNone;
};

// Collects the holdings of one kind; the scratch arrays are reused from kind to kind.
class HoldingCollector {
 public:
  explicit HoldingCollector(int num_ranks) : index_of_(static_cast<std::size_t>(num_ranks), kNone) {}

  const std::vector<Holding>& collect(const Change& change, const Change::Kind& kind) {
    for (const Holding& old : holdings_) index_of_[static_cast<std::size_t>(old.rank)] = kNone;
    holdings_.clear();
    visit(kind.from, change.from, &Holding::from);
    visit(kind.to, change.to, &Holding::to);
    return holdings_;
  }

 private:
  void visit(const Slots& slots, const Layout& layout, int Holding::*side) {
    for (const Partition& partition : slots.partitions)
      for (const int g : partition.grids) {
        const DeviceGrid& grid = layout.grids[static_cast<std::size_t>(g)];
        const Rank* rank = grid.ranks.data();
        for (int replica = 0; replica < grid.num_replicas; ++replica)
          for (int shard = 0; shard < grid.num_shards; ++shard)
            for (int part = 0; part < grid.num_parts; ++part, ++rank) {
              int& slot = holding(rank->value).*side;
              slot = slot == kNone ? partition.first_slot + part * grid.num_shards + shard : kSeveral;
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

  std::vector<int> index_of_;  // [rank] into holdings_
  std::vector<Holding> holdings_;
};

// In elements.
struct Cost {
  std::int64_t allocated = 0, freed = 0, missing = 0, needed = 0;
};

// The boxes of all slots of tensors that are cut alike.
struct SlotBoxes {
  const Change::Kind* kind = nullptr;
  std::vector<Box> from, to;
};

SlotBoxes boxes_of_kind(const Change::Kind& kind) {
  SlotBoxes boxes{&kind, {}, {}};
  for (int slot = 0; slot < kind.from.num_slots(); ++slot) boxes.from.push_back(kind.from.box(slot));
  for (int slot = 0; slot < kind.to.num_slots(); ++slot) boxes.to.push_back(kind.to.box(slot));
  return boxes;
}

Cost simple_cost(const Holding& holding, const SlotBoxes& boxes) {
  Cost cost;
  const Box* from = holding.from < 0 ? nullptr : &boxes.from[static_cast<std::size_t>(holding.from)];
  const Box* to = holding.to < 0 ? nullptr : &boxes.to[static_cast<std::size_t>(holding.to)];
  if (from != nullptr) cost.freed = from->num_elements();
  if (to != nullptr) cost.allocated = cost.missing = cost.needed = to->num_elements();
  if (from == nullptr || to == nullptr) return cost;
  if (*from == *to) return {0, 0, 0, cost.needed};
  if (const auto common = intersect(*from, *to)) cost.missing -= common->num_elements();
  return cost;
}

// The elements of the union of `boxes`, less those in `holes`, by cutting along all edges.
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

// For the rare rank that holds several boxes of one tensor.
Cost general_cost(const Change& change, const Change::Kind& kind, int rank, const SlotBoxes& boxes) {
  std::vector<Box> from, to;
  for (const int slot : slots_of_rank(kind.from, change.from_index, Rank{rank}))
    from.push_back(boxes.from[static_cast<std::size_t>(slot)]);
  for (const int slot : slots_of_rank(kind.to, change.to_index, Rank{rank}))
    to.push_back(boxes.to[static_cast<std::size_t>(slot)]);
  for (auto* list : {&from, &to}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  Cost cost;
  for (const Box& box : from)
    if (std::find(to.begin(), to.end(), box) == to.end()) cost.freed += box.num_elements();
  for (const Box& box : to)
    if (std::find(from.begin(), from.end(), box) == from.end()) cost.allocated += box.num_elements();
  cost.missing = count_elements(to, from, Box(kind.to.shape), 0);
  cost.needed = count_elements(to, {}, Box(kind.to.shape), 0);
  return cost;
}

// Splits the classes of ranks whenever two ranks of one class turn out to have different demands.
class ClassRefiner {
 public:
  explicit ClassRefiner(int num_ranks) : class_of_(static_cast<std::size_t>(num_ranks)) {}

  void begin_kind() { splits_.clear(), last_ = {-1, 0, 0}; }
  void refine(int rank, std::int64_t allocated, std::int64_t freed) {
    int& rank_class = class_of_[static_cast<std::size_t>(rank)];
    const Key key{rank_class, allocated, freed};
    if (!(key == last_)) {
      const auto [it, is_new] = splits_.try_emplace(key, num_classes_);
      if (is_new) ++num_classes_;
      last_ = key, last_class_ = it->second;
    }
    rank_class = last_class_;
  }
  int class_of(int rank) const { return class_of_[static_cast<std::size_t>(rank)]; }
  int num_classes() const { return num_classes_; }

 private:
  struct Key {
    std::int64_t rank_class, allocated, freed;
    bool operator==(const Key&) const = default;
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const {
      std::uint64_t hash = static_cast<std::uint64_t>(key.rank_class) * 0x9e3779b97f4a7c15ULL;
      hash = (hash ^ static_cast<std::uint64_t>(key.allocated)) * 0x9e3779b97f4a7c15ULL;
      hash = (hash ^ (hash >> 31) ^ static_cast<std::uint64_t>(key.freed)) * 0x9e3779b97f4a7c15ULL;
      return hash ^ (hash >> 29);
    }
  };
  std::vector<int> class_of_;
  std::unordered_map<Key, int, KeyHash> splits_;
  Key last_{-1, 0, 0};
  int last_class_ = 0, num_classes_ = 1;
};

}  // namespace

Demands demands_of(const Change& change) {
  struct RankDemand {
    int rank;
    std::int64_t allocated, freed;
  };
  Demands demands;
  HoldingCollector collector(change.places.num_places());
  ClassRefiner refiner(change.places.num_places());
  std::vector<SlotBoxes> known_boxes;
  std::vector<std::vector<RankDemand>> of_kind;
  for (const Change::Kind& kind : change.kinds) {
    auto boxes = std::find_if(known_boxes.begin(), known_boxes.end(), [&](const SlotBoxes& known) {
      return known.kind->from.cuts_like(kind.from) && known.kind->to.cuts_like(kind.to);
    });
    if (boxes == known_boxes.end()) boxes = known_boxes.insert(boxes, boxes_of_kind(kind));
    refiner.begin_kind();
    auto& ranks = of_kind.emplace_back();
    for (const Holding& holding : collector.collect(change, kind)) {
      if (change.is_dead[static_cast<std::size_t>(holding.rank)]) continue;
      const bool is_simple = holding.from != kSeveral && holding.to != kSeveral;
      const Cost cost =
          is_simple ? simple_cost(holding, *boxes) : general_cost(change, kind, holding.rank, *boxes);
      const std::int64_t bytes = kind.bytes_per_element,
                         copies = static_cast<std::int64_t>(kind.tensors.size());
      demands.lower_bound += Bytes(cost.missing * bytes * copies);
      demands.naive += Bytes(cost.needed * bytes * copies);
      if (cost.allocated == 0 && cost.freed == 0) continue;
      ranks.push_back({holding.rank, cost.allocated * bytes, cost.freed * bytes});
      refiner.refine(holding.rank, cost.allocated * bytes, cost.freed * bytes);
    }
  }
  demands.num_classes = refiner.num_classes();
  demands.of_kind.resize(of_kind.size());
  std::vector<int> last_kind(static_cast<std::size_t>(demands.num_classes), -1);
  for (std::size_t k = 0; k < of_kind.size(); ++k)
    for (const RankDemand& demand : of_kind[k]) {
      const int rank_class = refiner.class_of(demand.rank);
      if (std::exchange(last_kind[static_cast<std::size_t>(rank_class)], static_cast<int>(k)) ==
          static_cast<int>(k))
        continue;
      demands.of_kind[k].push_back({rank_class, demand.allocated, demand.freed});
    }
  return demands;
}

}  // namespace optimus
