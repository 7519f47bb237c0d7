// Copies the intersection of a stored box and a target box, and converts the element type. Internal to
// src/checkpoint.
#pragma once

#include <span>

#include "base/box.h"
#include "checkpoint/element.h"

namespace optimus {

// The stored values of `box`, in row-major order, as bytes of type `type`.
struct StoredBox {
  ElementType type;
  std::span<const std::byte> bytes;
  Box box;
};

// Copies the values of `common`, which is inside both boxes, to their positions in `out`. `out` contains the
// values of `target` in row-major order.
void copy_box(const StoredBox& source, const Box& common, const Box& target, std::span<float> out);
void copy_box(const StoredBox& source, const Box& common, const Box& target, std::span<double> out);

}  // namespace optimus
