// Checks whether boxes cover a shape exactly once. Used only by the manifest.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/box.h"

namespace optimus {

struct TilingMistake {
  std::array<std::int64_t, kMaxDims> element{};
  int num_boxes = 0;  // number of boxes that contain it: 0, or more than 1
};

// Returns the first element (in row-major order) that is not in exactly one box, or nullopt if there is none.
// The boxes must be inside the shape. Processes the corners of the boxes instead of the elements, so n boxes
// always take O(n log n) time.
std::optional<TilingMistake> find_tiling_mistake(const Shape& shape, std::span<const Box> boxes);

}  // namespace optimus
