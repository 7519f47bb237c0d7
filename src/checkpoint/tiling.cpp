// See tiling.h. The number of boxes that contain an element is the sum, over all corners that do not lie behind it in any
// dimension, of the corners' signs (+1 where an even number of its coordinates are ends, else -1):
//
//     +----- -         1  1  0
//     |      |   sums  1  1  0     So boxes cover what the whole covers, just as often, if and only if all signs of
//     - ---- +         0  0  0     the boxes and the negated signs of the whole cancel out, corner by corner.
//
// At the first corner where they do not, everything before it has cancelled, and the rest of the sum is the mistake there.
#include "checkpoint/tiling.h"

#include <algorithm>
#include <vector>

namespace optimus {
namespace {

struct Corner {
  std::array<std::int64_t, kMaxDims> at{};
  int sign = 0;
};

void append_corners(const Box& box, int sign, std::vector<Corner>& corners) {
  for (unsigned ends = 0; ends < 1U << box.num_dims; ++ends) {
    Corner corner{{}, sign};
    for (int d = 0; d < box.num_dims; ++d) {
      const bool is_end = (ends >> d & 1) != 0;
      corner.at[static_cast<std::size_t>(d)] = is_end ? box[d].end : box[d].begin;
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
  std::sort(corners.begin(), corners.end(), [](const Corner& a, const Corner& b) { return a.at < b.at; });
  for (std::size_t i = 0; i < corners.size();) {
    const auto at = corners[i].at;
    int sum = 0;
    for (; i < corners.size() && corners[i].at == at; ++i) sum += corners[i].sign;
    if (sum != 0) return TilingMistake{at, 1 + sum};
  }
  return std::nullopt;
}

}  // namespace optimus
