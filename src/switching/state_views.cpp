// Implements state_views.h.
#include "switching/state_views.h"

#include "base/error.h"

namespace optimus {

StateViews::StateViews(const PlanChange& change)
    : change_(change),
      have_shared_index_(bytes_of(change.to.precision) < 4),
      num_tensors_(static_cast<int>(change.old_layout.tensors.size()) / (have_shared_index_ ? 1 : 2)) {}

std::vector<at::Tensor BlockState::*> StateViews::fields(int tensor) const {
  std::vector<at::Tensor BlockState::*> result;
  if (has_masters(tensor)) result.push_back(&BlockState::masters);
  if (has_moments(tensor))
    result.insert(result.end(), {&BlockState::first_moment, &BlockState::second_moment});
  return result;
}

at::Tensor sub_view(at::Tensor view, const Box& own, const Box& box) {
  for (int d = 0; d < own.num_dims; ++d) view = view.narrow(d, box[d].begin - own[d].begin, box[d].size());
  return view;
}

std::vector<at::Tensor> StateViews::values(const Parameters& of, int tensor, const Box& box) const {
  std::vector<at::Tensor> result;
  for (at::Tensor BlockState::*const field : fields(tensor)) {
    const Parameters* const holder = of.holder(name_of(tensor), field, box);
    ensure(holder != nullptr, "{} of {} is not resident", text(box), name_of(tensor));
    result.push_back(
        sub_view(holder->view(name_of(tensor), field), holder->box(name_of(tensor), field), box));
  }
  return result;
}

at::Tensor StateViews::gradient(const Parameters& of, int tensor, const Box& box) const {
  const std::string& name = name_of(tensor);
  const BlockState& block = of.block(of.block_of(name));
  const at::Tensor moments = of.view(name, &BlockState::first_moment);
  const std::int64_t offset = moments.storage_offset() - block.first_moment.storage_offset();
  const at::Tensor gradient_view = block.gradients.narrow(0, offset, moments.numel()).view(moments.sizes());
  return sub_view(gradient_view, of.box(name, &BlockState::first_moment), box);
}

}  // namespace optimus
