// Kinds: tensors that lie alike. The layers of a model repeat, so of a thousand tensors a few dozen kinds
// remain, and what is computed for one tensor of a kind holds for all of them. Internal to src/layout.
#pragma once

#include <span>
#include <vector>

#include "layout/layout.h"
#include "layout/slots.h"

namespace optimus {

// Tensors of one kind have the same shape, the same bytes an element, and in every given layout the same
// placements.
struct Kinds {
  std::vector<std::vector<int>> tensors;  // [kind], ascending
  std::vector<int> kind_of, ordinal_of;   // [tensor]; ordinal: its index within the kind
};

// All layouts list the same tensors.
Kinds kinds_of(std::span<const Layout* const> layouts);

}  // namespace optimus
