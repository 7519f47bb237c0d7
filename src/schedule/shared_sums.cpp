// See shared_sums.h.
#include "schedule/shared_sums.h"

#include <algorithm>
#include <map>

#include "layout/sync.h"
#include "plan/layouts.h"

namespace optimus {
namespace {

// In a single pipeline only a tied embedding has owners in two stages, so most devices need no search.
bool has_shared_tensors(const Plan& plan, const ModelSpec& model, int device) {
  if (plan.pipelines.size() > 1) return true;
  if (!model.is_tied) return false;
  const Pipeline& pipeline = plan.pipelines.front();
  const Stage& stage = pipeline.stages[static_cast<std::size_t>(location_of(plan, device).stage)];
  const bool has_first_or_last_block =
      stage.chunks.front().first_block() == 0 || stage.chunks.back().end_block() == plan.num_blocks;
  if (!has_first_or_last_block) return false;
  return pipeline.stages.size() > 1 || strategy_of(stage, 0) != strategy_of(stage, plan.num_blocks - 1);
}

}  // namespace

std::vector<SharedSum> shared_sums(const Plan& plan, const ModelSpec& model, int device) {
  if (!has_shared_tensors(plan, model, device)) return {};
  const Layout layout = layout_of(plan, model, StateKind::optimizer);
  Layout joint;
  joint.grids = layout.grids;
  std::vector<int> tensor_indices;  // [tensor of `joint`]: index of the tensor in `layout`
  for (std::size_t t = 0; t < layout.tensors.size(); ++t)
    if (plan.pipelines.size() > 1 || layout.placements[t].size() > 1) {
      tensor_indices.push_back(static_cast<int>(t));
      joint.tensors.push_back(layout.tensors[t]);
      joint.placements.push_back(layout.placements[t]);
    }
  if (tensor_indices.empty()) return {};
  const SyncPlan sync_plan = sync(joint);
  const int bytes = state_bytes(plan.precision, plan.accumulators, StateKind::gradients);
  std::map<std::pair<int, std::vector<int>>, SharedSum> sums;
  for (const Reduction& reduction : sync_plan.reductions) {
    const std::vector<Rank>& owners = sync_plan.groups[static_cast<std::size_t>(reduction.group)];
    if (!std::binary_search(owners.begin(), owners.end(), Rank{device}) || owners.size() == 1) continue;
    std::vector<int> members;
    for (const Rank rank : owners) members.push_back(rank.value);
    const auto tensor = static_cast<std::size_t>(reduction.tensor);
    const int block = joint.tensors[tensor].block;
    SharedSum& sum = sums[{-block, members}];
    sum.block = block, sum.members = std::move(members);
    sum.boxes.push_back({tensor_indices[tensor], sync_plan.boxes[static_cast<std::size_t>(reduction.box)]});
    sum.bytes += Bytes(sum.boxes.back().box.num_elements() * bytes);
  }
  std::vector<SharedSum> result;
  for (auto& [key, sum] : sums) result.push_back(std::move(sum));
  return result;
}

}  // namespace optimus
