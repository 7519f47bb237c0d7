// Copies a box out of a stored one into another, converting numbers on the way. Internal to src/checkpoint.
#pragma once

#include <span>

#include "base/box.h"
#include "checkpoint/element.h"

namespace optimus {

// Values of `box`, row-major.
struct StoredBox {
  ElementType type;
  std::span<const std::byte> bytes;
  Box box;
};

// The values of `common`, which lies inside both boxes, to their places in `out`, which holds `target` row-major.
void copy_box(const StoredBox& source, const Box& common, const Box& target, std::span<float> out);
void copy_box(const StoredBox& source, const Box& common, const Box& target, std::span<double> out);

}  // namespace optimus
