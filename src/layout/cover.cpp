// Implements the sweep of cover.h.
#include "layout/cover.h"

#include <algorithm>

namespace optimus {
namespace {

using BoxPointers = std::vector<const Box*>;

// The boxes of a list that contain the current interval of one dimension during the sweep.
class ActiveBoxes {
 public:
  ActiveBoxes(const BoxPointers& boxes, int dim) : dim_(dim), waiting_(boxes) {
    std::sort(waiting_.begin(), waiting_.end(),
              [dim](const Box* a, const Box* b) { return (*a)[dim].begin > (*b)[dim].begin; });
  }
  const BoxPointers& boxes_at(std::int64_t position) {
    std::erase_if(boxes_, [&](const Box* box) { return (*box)[dim_].end <= position; });
    while (!waiting_.empty() && (*waiting_.back())[dim_].begin <= position) {
      boxes_.push_back(waiting_.back());
      waiting_.pop_back();
    }
    return boxes_;
  }

 private:
  int dim_;
  BoxPointers waiting_, boxes_;
};

// Whether the boxes are equal in all dimensions from `dim` on.
bool are_equal_from(int dim, const Box& a, const Box& b) {
  while (dim < a.num_dims && a[dim] == b[dim]) ++dim;
  return dim == a.num_dims;
}

std::optional<CoverMistake> sweep(const BoxPointers& required_boxes, const BoxPointers& pieces, Box interval,
                                  int dim) {
  if (required_boxes.empty() && pieces.empty()) return std::nullopt;
  if (required_boxes.size() == 1 && pieces.size() == 1 && are_equal_from(dim, *required_boxes[0], *pieces[0]))
    return std::nullopt;
  if (dim == interval.num_dims) {
    if (pieces.size() == 1 && !required_boxes.empty()) return std::nullopt;
    return CoverMistake{interval, static_cast<int>(pieces.size())};
  }
  std::vector<std::int64_t> edges;
  for (const BoxPointers* list : {&required_boxes, &pieces})
    for (const Box* box : *list) edges.push_back((*box)[dim].begin), edges.push_back((*box)[dim].end);
  std::sort(edges.begin(), edges.end());
  edges.erase(std::unique(edges.begin(), edges.end()), edges.end());
  ActiveBoxes active_required(required_boxes, dim), active_pieces(pieces, dim);
  for (std::size_t i = 0; i + 1 < edges.size(); ++i) {
    interval[dim] = {edges[i], edges[i + 1]};
    if (auto mistake =
            sweep(active_required.boxes_at(edges[i]), active_pieces.boxes_at(edges[i]), interval, dim + 1))
      return mistake;
  }
  return std::nullopt;
}

}  // namespace

std::optional<CoverMistake> find_cover_mistake(const std::vector<Box>& required_boxes,
                                               const std::vector<Box>& pieces) {
  BoxPointers required_pointers, piece_pointers;
  for (const Box& box : required_boxes) required_pointers.push_back(&box);
  for (const Box& box : pieces) piece_pointers.push_back(&box);
  if (required_boxes.empty() && pieces.empty()) return std::nullopt;
  Box interval;
  interval.num_dims = required_boxes.empty() ? pieces[0].num_dims : required_boxes[0].num_dims;
  return sweep(required_pointers, piece_pointers, interval, 0);
}

}  // namespace optimus
