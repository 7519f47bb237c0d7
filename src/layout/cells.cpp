// Splits a region into cells: collects the edges of each dimension, builds the grid that they span, and adds
// each slot to the cells that it covers.
#include <algorithm>
#include <array>

#include "base/error.h"
#include "layout/slots.h"

namespace optimus {
namespace {

using Edges = std::array<std::vector<std::int64_t>, kMaxDims>;

void add_edges(const std::vector<SlotBox>& slots, Edges& edges) {
  for (const SlotBox& slot : slots)
    for (int d = 0; d < slot.box.num_dims; ++d) {
      edges[static_cast<std::size_t>(d)].push_back(slot.box[d].begin);
      edges[static_cast<std::size_t>(d)].push_back(slot.box[d].end);
    }
}

Edges sorted_edges(const Box& region, const std::vector<SlotBox>& slots, const Slots* other_slots) {
  Edges edges;
  for (int d = 0; d < region.num_dims; ++d)
    edges[static_cast<std::size_t>(d)] = {region[d].begin, region[d].end};
  add_edges(slots, edges);
  if (other_slots != nullptr) {
    std::vector<SlotBox> other_boxes;
    find_slots(*other_slots, region, other_boxes);
    add_edges(other_boxes, edges);
  }
  for (auto& edge : edges) {
    std::sort(edge.begin(), edge.end());
    edge.erase(std::unique(edge.begin(), edge.end()), edge.end());
  }
  return edges;
}

// The grid of cells between edges, row-major.
class CellGrid {
 public:
  CellGrid(int num_dims, Edges edges) : num_dims_(num_dims), edges_(std::move(edges)) {
    for (int d = 0; d < num_dims; ++d) num_cells_ *= width(d);
  }
  std::size_t num_cells() const { return num_cells_; }

  Box box(std::size_t cell) const {
    Box result;
    result.num_dims = num_dims_;
    for (int d = num_dims_ - 1; d >= 0; --d) {
      const auto& edge = edges_[static_cast<std::size_t>(d)];
      result[d] = {edge[cell % width(d)], edge[cell % width(d) + 1]};
      cell /= width(d);
    }
    return result;
  }

  template <typename Use>
  void for_each_in(const Box& box, const Use& use) const {
    std::array<std::size_t, kMaxDims> begin{}, end{};
    begin.fill(0), end.fill(1);
    for (int d = 0; d < num_dims_; ++d) {
      const auto i = static_cast<std::size_t>(d);
      begin[i] = index_of(edges_[i], box[d].begin), end[i] = index_of(edges_[i], box[d].end);
    }
    for (std::size_t a = begin[0]; a < end[0]; ++a)
      for (std::size_t b = begin[1]; b < end[1]; ++b)
        for (std::size_t c = begin[2]; c < end[2]; ++c)
          for (std::size_t e = begin[3]; e < end[3]; ++e)
            use(((a * width(1) + b) * width(2) + c) * width(3) + e);
  }

 private:
  std::size_t width(int d) const {
    return d < num_dims_ ? edges_[static_cast<std::size_t>(d)].size() - 1 : 1;
  }
  static std::size_t index_of(const std::vector<std::int64_t>& edge, std::int64_t coordinate) {
    return static_cast<std::size_t>(std::lower_bound(edge.begin(), edge.end(), coordinate) - edge.begin());
  }

  int num_dims_;
  Edges edges_;
  std::size_t num_cells_ = 1;
};

}  // namespace

void append_cells(const Slots& holders, const Slots* other_slots, const Box& region, SlotSets& sets,
                  std::vector<SlotCell>& cells) {
  if (region.is_empty()) return;
  std::vector<SlotBox> slots;
  find_slots(holders, region, slots);
  const bool is_unsplit =
      std::all_of(slots.begin(), slots.end(), [&](const SlotBox& slot) { return slot.box == region; });
  if (is_unsplit && other_slots == nullptr) {
    std::vector<int> slot_ids;
    for (const SlotBox& slot : slots) slot_ids.push_back(slot.slot);
    cells.push_back({region, sets.intern(slot_ids)});
    return;
  }
  const CellGrid grid(region.num_dims, sorted_edges(region, slots, other_slots));
  std::vector<int> first_member(grid.num_cells() + 1);
  for (const SlotBox& slot : slots)
    grid.for_each_in(slot.box, [&](std::size_t cell) { ++first_member[cell + 1]; });
  for (std::size_t cell = 0; cell < grid.num_cells(); ++cell) first_member[cell + 1] += first_member[cell];
  std::vector<int> next(first_member), members(static_cast<std::size_t>(first_member.back()));
  for (const SlotBox& slot : slots)
    grid.for_each_in(slot.box,
                     [&](std::size_t cell) { members[static_cast<std::size_t>(next[cell]++)] = slot.slot; });
  for (std::size_t cell = 0; cell < grid.num_cells(); ++cell) {
    const auto begin = static_cast<std::size_t>(first_member[cell]),
               end = static_cast<std::size_t>(first_member[cell + 1]);
    cells.push_back({grid.box(cell), sets.intern(std::span(members).subspan(begin, end - begin))});
  }
}

}  // namespace optimus
