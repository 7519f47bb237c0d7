// Converts layouts into a transport problem between classes of ranks, and its solution back into ranks.
#include "layout/assign.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "layout/kinds.h"
#include "layout/slots.h"
#include "layout/transport.h"

namespace optimus {
namespace {

// Assigns the same index to grids whose positions hold the same data for every tensor. Pipelines of the same
// shape have such grids.
std::vector<int> equal_grids(const Layout& layout) {
  using Content = std::vector<std::int64_t>;
  std::vector<Content> contents(layout.grids.size());
  for (std::size_t g = 0; g < layout.grids.size(); ++g)
    contents[g] = {layout.grids[g].num_shards, layout.grids[g].num_parts};
  for (std::size_t t = 0; t < layout.placements.size(); ++t)
    for (const Placement& placement : layout.placements[t]) {
      Content& content = contents[static_cast<std::size_t>(placement.grid)];
      content.push_back(static_cast<std::int64_t>(t)), content.push_back(placement.split_dim);
      for (const Span& part : placement.parts) content.push_back(part.begin), content.push_back(part.end);
    }
  std::map<Content, int> numbers;
  std::vector<int> result;
  for (const Content& content : contents)
    result.push_back(numbers.try_emplace(content, static_cast<int>(numbers.size())).first->second);
  return result;
}

struct Classes {
  std::vector<int> class_of;               // [rank]; -1 for ranks that were not requested
  std::vector<std::vector<Rank>> members;  // [class]: its ranks
};

Classes classes_of(const Layout& layout, const RankIndex& index, const std::vector<Rank>& ranks) {
  const std::vector<int> grid_number = equal_grids(layout);
  int highest = index.num_ranks() - 1;
  for (const Rank rank : ranks) highest = std::max(highest, rank.value);
  Classes classes{std::vector<int>(static_cast<std::size_t>(highest) + 1, -1), {}};
  std::map<std::vector<std::array<int, 3>>, int> class_index;
  for (const Rank rank : ranks) {
    std::vector<std::array<int, 3>> holdings;
    for (const RankIndex::GridPosition& position : index.positions(rank))
      holdings.push_back(
          {grid_number[static_cast<std::size_t>(position.grid)], position.shard, position.part});
    std::sort(holdings.begin(), holdings.end());
    const auto [it, is_new] =
        class_index.try_emplace(std::move(holdings), static_cast<int>(classes.members.size()));
    if (is_new) classes.members.emplace_back();
    classes.class_of[static_cast<std::size_t>(rank.value)] = it->second;
    classes.members[static_cast<std::size_t>(it->second)].push_back(rank);
  }
  return classes;
}

std::vector<int> classes_holding(std::span<const int> slots, const Slots& slot_table, const Layout& layout,
                                 const Classes& classes) {
  std::vector<Rank> ranks;
  for (const int slot : slots) append_holders(slot_table, slot, layout, ranks);
  std::vector<int> result;
  for (const Rank rank : ranks)
    if (const int number = classes.class_of[static_cast<std::size_t>(rank.value)]; number >= 0)
      result.push_back(number);
  std::sort(result.begin(), result.end());
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

// The classes that hold each set of slots, computed on first use.
class ClassSets {
 public:
  ClassSets(const SlotSets& sets, const Slots& slots, const Layout& layout, const Classes& classes)
      : sets_(sets), slots_(slots), layout_(layout), classes_(classes) {}
  const std::vector<int>& of(int set) {
    while (static_cast<int>(class_members_.size()) <= set)
      class_members_.push_back(
          classes_holding(sets_[static_cast<int>(class_members_.size())], slots_, layout_, classes_));
    return class_members_[static_cast<std::size_t>(set)];
  }

 private:
  const SlotSets& sets_;
  const Slots& slots_;
  const Layout& layout_;
  const Classes& classes_;
  std::vector<std::vector<int>> class_members_;
};

struct Overlaps {
  std::vector<TransportProblem::Edge> edges;  // row: class of virtual ranks, column: class of devices
  std::int64_t needed_bytes = 0;
};

Overlaps overlaps_of(const Layout& from, const Classes& devices, const Layout& to, const Classes& ranks) {
  Overlaps result;
  std::unordered_map<std::uint64_t, std::int64_t> bytes_of_pair;
  const Layout* layouts[] = {&from, &to};
  for (const std::vector<int>& tensors : kinds_of(layouts).tensors) {
    const Slots old_slots = slots_of(from, tensors[0]), new_slots = slots_of(to, tensors[0]);
    SlotSets old_sets, new_sets;
    std::vector<SlotCell> cells;
    append_cells(old_slots, &new_slots, Box(old_slots.shape), old_sets, cells);
    ClassSets holders(old_sets, old_slots, from, devices), receivers(new_sets, new_slots, to, ranks);
    std::vector<SlotBox> new_slot_boxes;
    std::vector<int> slots;
    for (const SlotCell& cell : cells) {
      new_slot_boxes.clear(), slots.clear();
      find_slots(new_slots, cell.box, new_slot_boxes);
      for (const SlotBox& slot : new_slot_boxes) slots.push_back(slot.slot);
      const std::int64_t bytes = cell.box.num_elements() *
                                 from.tensors[static_cast<std::size_t>(tensors[0])].bytes_per_element *
                                 static_cast<std::int64_t>(tensors.size());
      for (const int receiver : receivers.of(new_sets.intern(slots))) {
        result.needed_bytes +=
            bytes * static_cast<std::int64_t>(ranks.members[static_cast<std::size_t>(receiver)].size());
        for (const int holder : holders.of(cell.holders))
          bytes_of_pair[static_cast<std::uint64_t>(receiver) << 32 | static_cast<std::uint64_t>(holder)] +=
              bytes;
      }
    }
  }
  for (const auto& [pair, bytes] : bytes_of_pair)
    result.edges.push_back({static_cast<int>(pair >> 32), static_cast<int>(pair & 0xffffffffu), bytes});
  std::sort(result.edges.begin(), result.edges.end(), [](const auto& a, const auto& b) {
    return std::pair(a.row, a.column) < std::pair(b.row, b.column);
  });
  return result;
}

// Converts flows between classes into pairs of ranks. A virtual rank is assigned the device with the same
// index if possible.
class DeviceMapper {
 public:
  DeviceMapper(const Classes& ranks, const Classes& devices, int num_ranks)
      : ranks_(ranks.members),
        devices_(devices.members),
        device_of_(static_cast<std::size_t>(num_ranks), Rank{-1}) {
    is_taken_.resize(devices.class_of.size());
  }

  std::vector<Rank> map(std::vector<TransportFlow> flows) {
    for (TransportFlow& flow : flows)
      for (const Rank rank : ranks_[static_cast<std::size_t>(flow.row)])
        if (const auto& devices = devices_[static_cast<std::size_t>(flow.column)];
            flow.amount > 0 && is_unassigned(rank) &&
            std::binary_search(devices.begin(), devices.end(), rank) && !is_taken(rank))
          assign_device(rank, rank), --flow.amount;
    for (const TransportFlow& flow : flows) {
      int remaining = flow.amount;
      auto device = devices_[static_cast<std::size_t>(flow.column)].begin();
      for (const Rank rank : ranks_[static_cast<std::size_t>(flow.row)]) {
        if (remaining == 0) break;
        if (!is_unassigned(rank)) continue;
        while (is_taken(*device)) ++device;
        assign_device(rank, *device), --remaining;
      }
    }
    assign_remaining();
    return std::move(device_of_);
  }

 private:
  void assign_remaining() {
    std::vector<Rank> free_devices;
    for (const auto& devices : devices_)
      for (const Rank device : devices)
        if (!is_taken(device)) free_devices.push_back(device);
    std::sort(free_devices.begin(), free_devices.end());
    for (int r = 0; r < static_cast<int>(device_of_.size()); ++r)
      if (is_unassigned(Rank{r}) && std::binary_search(free_devices.begin(), free_devices.end(), Rank{r}))
        assign_device(Rank{r}, Rank{r});
    auto device = free_devices.begin();
    for (int r = 0; r < static_cast<int>(device_of_.size()); ++r) {
      if (!is_unassigned(Rank{r})) continue;
      while (is_taken(*device)) ++device;
      assign_device(Rank{r}, *device);
    }
  }
  bool is_unassigned(Rank rank) const { return device_of_[static_cast<std::size_t>(rank.value)].value < 0; }
  bool is_taken(Rank device) const { return is_taken_[static_cast<std::size_t>(device.value)]; }
  void assign_device(Rank rank, Rank device) {
    device_of_[static_cast<std::size_t>(rank.value)] = device;
    is_taken_[static_cast<std::size_t>(device.value)] = true;
  }

  const std::vector<std::vector<Rank>>&ranks_, &devices_;
  std::vector<Rank> device_of_;
  std::vector<bool> is_taken_;  // [device]: whether it has been assigned
};

std::vector<Rank> checked_devices(std::vector<Rank> available, int num_needed) {
  std::sort(available.begin(), available.end());
  if (const auto duplicate = std::adjacent_find(available.begin(), available.end());
      duplicate != available.end())
    throw UserError("device {} is listed twice among the available devices", duplicate->value);
  if (!available.empty() && (available.front().value < 0 || available.back().value >= kMaxRanks))
    throw UserError("devices {} to {} are available, but device numbers must be from 0 to {}",
                    available.front().value, available.back().value, kMaxRanks - 1);
  if (static_cast<int>(available.size()) < num_needed)
    throw UserError("the plan needs {} devices, but only {} are available", num_needed, available.size());
  return available;
}

}  // namespace

Assignment assign_devices(const Layout& from, const Layout& to, const std::vector<Rank>& available,
                          const AssignOptions& options) {
  validate_pair(from, to);
  const int count = num_ranks(to);
  std::vector<Rank> virtual_ranks;
  for (int r = 0; r < count; ++r) virtual_ranks.push_back(Rank{r});
  const Classes devices = classes_of(from, RankIndex(from), checked_devices(available, count));
  const Classes ranks = classes_of(to, RankIndex(to), virtual_ranks);

  TransportProblem problem;
  Overlaps overlaps = overlaps_of(from, devices, to, ranks);
  problem.edges = std::move(overlaps.edges);
  for (const auto& members : ranks.members) problem.demand.push_back(static_cast<int>(members.size()));
  for (const auto& members : devices.members) problem.supply.push_back(static_cast<int>(members.size()));
  const TransportResult result = transport(problem, options.max_work);
  return {DeviceMapper(ranks, devices, count).map(result.flows), Bytes(overlaps.needed_bytes),
          Bytes(result.weight), Bytes(result.bound), result.is_exact};
}

Layout with_devices(Layout layout, const std::vector<Rank>& device_of) {
  for (DeviceGrid& grid : layout.grids)
    for (Rank& rank : grid.ranks) {
      ensure(rank.value >= 0 && static_cast<std::size_t>(rank.value) < device_of.size(),
             "no device is assigned to rank {}", rank.value);
      rank = device_of[static_cast<std::size_t>(rank.value)];
    }
  return layout;
}

}  // namespace optimus
