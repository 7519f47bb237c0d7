// Cover: whether pieces tile a set of boxes: every element of the boxes in exactly one piece, and no piece
// beyond them. By sweeping through the dimensions, interval by interval. Internal to verify.
#pragma once

#include <optional>
#include <vector>

#include "base/box.h"

namespace optimus {

struct CoverMistake {
  Box box;
  int times = 0;  // how many pieces contain it; 0: it is missing, 1: it is not wanted, more: too often
};

// The first mistake, or nothing. All boxes have the same number of dims, and none is empty.
std::optional<CoverMistake> find_cover_mistake(const std::vector<Box>& wanted,
                                               const std::vector<Box>& pieces);

}  // namespace optimus
