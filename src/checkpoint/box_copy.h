// Copies the common part of a stored box into another box and converts the numbers. Internal to
// src/checkpoint.
#pragma once

#include <span>

#include "base/box.h"
#include "checkpoint/element.h"

namespace optimus {

// The values of `box`, row-major.
struct StoredBox {
  ElementType type;
  std::span<const std::byte> bytes;
  Box box;
};

// Copies the values of `common`, which is inside both boxes, to their positions in `out`, which holds
// `target` row-major.
void copy_box(const StoredBox& source, const Box& common, const Box& target, std::span<float> out);
void copy_box(const StoredBox& source, const Box& common, const Box& target, std::span<double> out);

}  // namespace optimus
