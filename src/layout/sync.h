// sync: determines which ranks reduce which gradients. Every element of every tensor belongs to exactly one
// reduction. The group of the reduction consists of exactly the ranks that hold the element in the layout
// used for computing gradients.
//
// If one group of ranks holds a tensor, there is one reduction per tensor-parallel part. If different
// elements of a tensor have different owners, because of pipelines of different width, a tied embedding
// (used in the first and the last block of the model), or key/value heads that several parts hold, the
// tensor is split into elementary boxes:
//
//     pipeline 0: tp 2, ranks 0 1       pipeline 1: tp 3, ranks 2 3 4         reductions
//     0 0 0 0 0 0 1 1 1 1 1 1           2 2 2 2 3 3 3 3 4 4 4 4               {0,2} {0,3} {1,3} {1,4}
//                                                                               0:4   4:6   6:8   8:12
//
// Thousands of tensors share few groups, so groups are stored in a table and each reduction takes only 12
// bytes. Elements that only one rank holds are listed as well, with a group of one rank. They require no
// communication, but they count once in the gradient norm. A rank that holds an element twice (first and last
// block of a tied model) is in the group once; it first adds its two gradients.
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
  std::vector<std::vector<Rank>> groups;  // distinct groups; each lists its ranks in ascending order
  std::vector<Box> boxes;
  // In the order of the tensors; the boxes of a tensor are in lexicographic order.
  std::vector<Reduction> reductions;
};

// O(placements + ranks * kinds of tensors). Throws a UserError if the layout is invalid.
SyncPlan sync(const Layout& compute);

// The lowest rank of a reduction's group. Where each element must be counted once (in the gradient norm),
// this rank counts it.
Rank canonical_owner(const SyncPlan& plan, const Reduction& reduction);

}  // namespace optimus
