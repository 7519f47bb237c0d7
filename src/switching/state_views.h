// Views of the state that one rank moves, for each tensor in PlanChange's layouts. The views refer to the
// buffers of the old and the new plan. Used by move.h and precopy.h.
#pragma once

#include <string>
#include <vector>

#include "engine/parameters.h"
#include "reshard/plan_change.h"

namespace optimus {

// The parameters of the old and the new plan. Null if that plan does not use the rank. Masters and moments
// are moved from `old` to `next`, which has no buffers yet.
struct MoveEnds {
  Parameters* old = nullptr;
  Parameters* next = nullptr;
};

class StateViews {
 public:
  // `change` must outlive this object.
  explicit StateViews(const PlanChange& change);

  const std::string& name_of(int tensor) const {
    return change_.old_layout.tensors[static_cast<std::size_t>(tensor)].name;
  }
  int block_of(int tensor) const {
    return change_.old_layout.tensors[static_cast<std::size_t>(tensor)].block;
  }
  bool has_masters(int tensor) const { return have_shared_index_ || tensor < num_tensors_; }
  bool has_moments(int tensor) const { return have_shared_index_ || tensor >= num_tensors_; }
  // The tensor index under which a tensor's moments move.
  int moments_of(int tensor) const { return has_moments(tensor) ? tensor : tensor + num_tensors_; }
  // The fields that move under this tensor index.
  std::vector<at::Tensor BlockState::*> fields(int tensor) const;

  // Returns views of a tensor's `box`, one for each of its fields.
  std::vector<at::Tensor> values(const Parameters& of, int tensor, const Box& box) const;
  // Returns a view of `box` in the reduced gradient after a step. The gradient has the layout of the moments.
  // Redundant copies have no gradient.
  at::Tensor gradient(const Parameters& of, int tensor, const Box& box) const;

 private:
  const PlanChange& change_;
  const bool have_shared_index_;  // masters and moments share one index
  const int num_tensors_;         // number of tensors of the model
};

// `view` covers the box `own`. Returns the part of it that covers `box`.
at::Tensor sub_view(at::Tensor view, const Box& own, const Box& box);

}  // namespace optimus
