// Checks whether pieces tile a set of boxes: every element of the boxes is in exactly one piece, and no piece
// extends outside the boxes. Sweeps through the dimensions interval by interval. Internal to verify.
#pragma once

#include <optional>
#include <vector>

#include "base/box.h"

namespace optimus {

struct CoverMistake {
  Box box;
  // Number of pieces that contain the box: 0 if the box is missing, 1 if it is outside the required boxes,
  // more if several pieces overlap there.
  int num_pieces = 0;
};

// Returns the first mistake, or nullopt. All boxes must have the same number of dimensions and must not be
// empty.
std::optional<CoverMistake> find_cover_mistake(const std::vector<Box>& required_boxes,
                                               const std::vector<Box>& pieces);

}  // namespace optimus
