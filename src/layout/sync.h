// sync: which ranks add up which gradients. Every element of every tensor belongs to exactly one reduction,
// whose group is exactly the ranks that hold the element in the layout in which gradients are computed.
//
// Where one group of ranks holds a tensor, that is one reduction per tensor-parallel part. Where pipelines of
// different width, a tied embedding (used at both ends of the model), or key/value heads held by several
// parts make owners differ within a tensor, the tensor is cut into elementary boxes:
//
//     pipeline 0: tp 2, ranks 0 1       pipeline 1: tp 3, ranks 2 3 4         reductions
//     0 0 0 0 0 0 1 1 1 1 1 1           2 2 2 2 3 3 3 3 4 4 4 4               {0,2} {0,3} {1,3} {1,4}
//                                                                               0:4   4:6   6:8   8:12
//
// Thousands of tensors share few groups, so groups lie in a table and reductions are 12 bytes. Elements that
// one rank holds alone are listed too, with a group of one: nothing to send, but they count once in the
// gradient's norm. A rank that holds an element twice (both ends of a tied embedding) stands once in the
// group; it adds its two gradients first.
#pragma once

#include <vector>

#include "layout/layout.h"

namespace optimus {

struct Reduction {
  int tensor = 0;
  int box = 0;    // index into SyncPlan::boxes
  int group = 0;  // index into SyncPlan::groups
  bool operator==(const Reduction&) const = default;
};

struct SyncPlan {
  std::vector<std::vector<Rank>> groups;  // ascending, distinct
  std::vector<Box> boxes;
  std::vector<Reduction> reductions;  // by tensor; within a tensor its boxes in lexicographic order
};

// O(placements + ranks * kinds of tensors). Throws UserError when the layout is not valid.
SyncPlan sync(const Layout& compute);

// The rank that counts a reduction's elements where each must count once (gradient norm): the group's lowest.
Rank canonical_owner(const SyncPlan& plan, const Reduction& reduction);

}  // namespace optimus
