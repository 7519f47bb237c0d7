// Implements tiling.h. Each corner of a box has a sign: +1 if an even number of its coordinates are ends,
// otherwise -1. The number of boxes that contain an element is the sum of the signs of all corners that are
// not greater than the element in any dimension:
//
//     +----- -         1  1  0
//     |      |   sums  1  1  0     Therefore boxes cover the shape exactly once if and only if the signs
//     - ---- +         0  0  0     of the boxes and the negated signs of the shape cancel at every corner.
//
// At the first corner whose signs do not cancel, the sum of these signs is the error at that element, because
// the signs at all corners before it cancel.
#include "checkpoint/tiling.h"

#include <algorithm>
#include <vector>

namespace optimus {
namespace {

struct Corner {
  std::array<std::int64_t, kMaxDims> position{};
  int sign = 0;
};

void append_corners(const Box& box, int sign, std::vector<Corner>& corners) {
  for (unsigned ends = 0; ends < 1U << box.num_dims; ++ends) {
    Corner corner{{}, sign};
    for (int d = 0; d < box.num_dims; ++d) {
      const bool is_end = (ends >> d & 1) != 0;
      corner.position[static_cast<std::size_t>(d)] = is_end ? box[d].end : box[d].begin;
      if (is_end) corner.sign = -corner.sign;
    }
    corners.push_back(corner);
  }
}

}  // namespace

std::optional<TilingMistake> find_tiling_mistake(const Shape& shape, std::span<const Box> boxes) {
  if (boxes.size() == 1 && boxes[0] == Box(shape)) return std::nullopt;
  std::vector<Corner> corners;
  corners.reserve((boxes.size() + 1) << shape.num_dims);
  append_corners(Box(shape), -1, corners);
  for (const Box& box : boxes) append_corners(box, 1, corners);
  std::sort(corners.begin(), corners.end(),
            [](const Corner& a, const Corner& b) { return a.position < b.position; });
  for (std::size_t i = 0; i < corners.size();) {
    const auto at = corners[i].position;
    int sum = 0;
    for (; i < corners.size() && corners[i].position == at; ++i) sum += corners[i].sign;
    if (sum != 0) return TilingMistake{at, 1 + sum};
  }
  return std::nullopt;
}

}  // namespace optimus
