// Where the state that moves lies on one rank, tensor by tensor of PlanChange's layouts: views into the buffers of the old and of the new
// plan. For those that move it: move.h, precopy.h.
#pragma once

#include <string>
#include <vector>

#include "engine/parameters.h"
#include "reshard/plan_change.h"

namespace optimus {

// Either is null where the rank is not in that plan. Of `old` masters and moments are taken apart. `next` holds nothing yet.
struct MoveEnds {
  Parameters* old = nullptr;
  Parameters* next = nullptr;
};

class StateViews {
 public:
  // It must outlive this.
  explicit StateViews(const PlanChange& change);

  const std::string& name_of(int tensor) const {
    return change_.before.tensors[static_cast<std::size_t>(tensor)].name;
  }
  int block_of(int tensor) const { return change_.before.tensors[static_cast<std::size_t>(tensor)].block; }
  bool has_masters(int tensor) const { return are_together_ || tensor < num_tensors_; }
  bool has_moments(int tensor) const { return are_together_ || tensor >= num_tensors_; }
  // The number that a tensor's moments have.
  int moments_of(int tensor) const { return has_moments(tensor) ? tensor : tensor + num_tensors_; }
  // What is moved under this number.
  std::vector<at::Tensor BlockState::*> fields(int tensor) const;

  // A box of what is held of a tensor, of each of its fields.
  std::vector<at::Tensor> values(const Parameters& of, int tensor, const Box& box) const;
  // Of the gradient that all devices have added up, which lies as moments do, behind a step. Not of copies for others.
  at::Tensor gradient(const Parameters& of, int tensor, const Box& box) const;

 private:
  const PlanChange& change_;
  const bool are_together_;  // masters and moments have one number
  const int num_tensors_;    // of the model
};

// The part of a view of `own` that is `box`.
at::Tensor part_of(at::Tensor view, const Box& own, const Box& box);

}  // namespace optimus
