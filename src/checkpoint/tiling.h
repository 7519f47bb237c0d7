// Whether boxes cover a shape exactly once. Internal to the manifest.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "base/box.h"

namespace optimus {

struct TilingMistake {
  std::array<std::int64_t, kMaxDims> element{};
  int times = 0;  // how many boxes contain it: 0, or more than 1
};

// The first element (row-major) that is not in exactly one box, or nothing. The boxes must lie inside the shape. Works with
// corners: n boxes take O(n log n), however they lie.
std::optional<TilingMistake> find_tiling_mistake(const Shape& shape, std::span<const Box> boxes);

}  // namespace optimus
