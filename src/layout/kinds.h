// Kinds: groups of tensors with equal placements. The layers of a model repeat, so a thousand tensors form
// only a few dozen kinds, and results for one tensor of a kind apply to all of them. Internal to src/layout.
#pragma once

#include <span>
#include <vector>

#include "layout/layout.h"
#include "layout/slots.h"

namespace optimus {

// Tensors of one kind have the same shape, the same bytes per element, and the same placements in every given
// layout.
struct Kinds {
  std::vector<std::vector<int>> tensors;  // [kind], in ascending order
  std::vector<int> kind_of, ordinal_of;   // [tensor]; ordinal: index within the kind
};

// Groups the tensors of the layouts. All layouts must list the same tensors.
Kinds kinds_of(std::span<const Layout* const> layouts);

}  // namespace optimus
