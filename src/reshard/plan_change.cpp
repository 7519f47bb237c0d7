// See plan_change.h.
#include "reshard/plan_change.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "layout/assign.h"
#include "layout/verify.h"
#include "plan/fp8.h"
#include "plan/layouts.h"
#include "plan/validate.h"
#include "schedule/program.h"

namespace optimus {
namespace {

constexpr Bytes kChunk{std::int64_t{16} << 20};

// Appends the tensors of `second` to those of `first`.
Layout concatenated(Layout first, const Layout& second) {
  const int num_grids = static_cast<int>(first.grids.size());
  first.grids.insert(first.grids.end(), second.grids.begin(), second.grids.end());
  first.tensors.insert(first.tensors.end(), second.tensors.begin(), second.tensors.end());
  for (std::vector<Placement> placements : second.placements) {
    for (Placement& placement : placements) placement.grid += num_grids;
    first.placements.push_back(std::move(placements));
  }
  return first;
}

// Renumbers the devices of the plan to 0 … n - 1, because the numbers in a plan file are positions, not
// ranks.
Plan with_consecutive_devices(Plan plan) {
  std::vector<int> devices;
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages)
      devices.insert(devices.end(), stage.devices.begin(), stage.devices.end());
  std::sort(devices.begin(), devices.end());
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices)
        device = static_cast<int>(std::lower_bound(devices.begin(), devices.end(), device) - devices.begin());
  return plan;
}

// Rejects changes that would alter what the model learns.
Feasible<void> check_same_training(const Plan& from, const Plan& to, bool is_phase) {
  const auto refuse = [](const char* property, const auto& current_value, const auto& new_value) {
    return infeasible(
        "the plan would change {} from {} to {}; a plan change must not alter what the model learns",
        property, current_value, new_value);
  };
  if (from.batch != to.batch && !is_phase) return refuse("the batch", from.batch, to.batch);
  if (from.sequence_length != to.sequence_length && !is_phase)
    return refuse("the sequence length", from.sequence_length, to.sequence_length);
  if (from.precision != to.precision)
    return refuse("the precision", text(from.precision), text(to.precision));
  if (fp8_text(from) != fp8_text(to)) return refuse("the fp8 GEMMs", fp8_text(from), fp8_text(to));
  return {};
}

DiffOptions diff_options(const PlanChange& change) { return {.dead = change.dead, .chunk = kChunk}; }

// The memory of a stage's devices apart from master weights and moments, at its minimum over all stages. It
// is unused between steps and therefore available for moved data.
Bytes min_spare_memory(const Plan& plan, const ModelSpec& model) {
  Bytes min_spare(std::numeric_limits<std::int64_t>::max());
  for (const Pipeline& pipeline : plan.pipelines)
    for (const Stage& stage : pipeline.stages) {
      const Program program = compile(plan, model, stage.devices.front());
      const MemoryUse use = memory_use(program);
      Bytes spare_memory = use.gradients + plan_arena(program).bytes;
      if (bytes_of(plan.precision) < 4) spare_memory += use.weights;
      min_spare = std::min(min_spare, spare_memory);
    }
  return min_spare;
}

// Assigns positions without state to the remaining ranks. Layouts do not contain the last positions if these
// have no state (custom blocks without parameters).
void add_stateless_positions(std::vector<int>& device_of, int num_places, int num_ranks) {
  for (int rank = 0; rank < num_ranks && std::ssize(device_of) < num_places; ++rank)
    if (std::find(device_of.begin(), device_of.end(), rank) == device_of.end()) device_of.push_back(rank);
}

// Returns an order of transfers in which no rank needs more than change.spare_memory in addition to its
// state. If there is no such order, returns one without this limit.
Feasible<WaveOrder> order_of_moves(const PlanChange& change) {
  DiffOptions options = diff_options(change);
  options.reserve = change.spare_memory;
  if (DiffOutcome<WaveOrder> order = order_waves(LayoutChange(change.old_layout, change.new_layout, options)))
    return std::move(*order);
  DiffOutcome<WaveOrder> order =
      order_waves(LayoutChange(change.old_layout, change.new_layout, diff_options(change)));
  if (!order && !order.error().lost.empty()) return infeasible("{}", order.error().why);
  ensure(order.has_value(), "no order of transfers was found: {}", order ? "" : order.error().why);
  return std::move(*order);
}

}  // namespace

Layout state_layout(const Plan& plan, const ModelSpec& model, MasterCopies copies) {
  Layout moments = layout_with_copies(plan, model, StateKind::optimizer);
  if (bytes_of(plan.precision) < 4) return moments;
  Layout masters = layout_with_copies(plan, model, StateKind::weights);
  if (copies == MasterCopies::owned) masters.grids = moments.grids, masters.placements = moments.placements;
  return concatenated(std::move(masters), moments);
}

Plan with_devices(Plan plan, const std::vector<int>& device_of) {
  for (Pipeline& pipeline : plan.pipelines)
    for (Stage& stage : pipeline.stages)
      for (int& device : stage.devices) device = device_of.at(static_cast<std::size_t>(device));
  return plan;
}

Feasible<PlanChange> find_plan_change(const Plan& from, const Plan& to, const ModelSpec& model,
                                      const AvailableRanks& available_ranks) {
  if (const auto problem = find_problem(to, model)) return infeasible("the plan is not valid: {}", *problem);
  if (const auto same_training = check_same_training(from, to, available_ranks.is_phase); !same_training)
    return tl::unexpected(same_training.error());
  if (num_devices(to) > available_ranks.num_staying)
    return infeasible("the plan needs {} devices, but the run has {}", num_devices(to),
                      available_ranks.num_staying);
  PlanChange change;
  change.from = from, change.copies = available_ranks.copies;
  change.old_layout = state_layout(from, model, available_ranks.copies);
  const Plan numbered_plan = with_consecutive_devices(to);
  for (int rank = available_ranks.num_ranks; rank < num_ranks(change.old_layout); ++rank)
    change.dead.push_back(Rank{rank});
  std::vector<Rank> staying_ranks;
  for (int rank = 0; rank < available_ranks.num_staying; ++rank) staying_ranks.push_back(Rank{rank});
  const Assignment assignment =
      assign_devices(change.old_layout, state_layout(numbered_plan, model), staying_ranks);
  std::vector<int> device_of;
  for (const Rank rank : assignment.device_of) device_of.push_back(rank.value);
  add_stateless_positions(device_of, num_devices(numbered_plan), available_ranks.num_staying);
  change.to = available_ranks.is_placed ? to : with_devices(numbered_plan, device_of);
  change.new_layout = state_layout(change.to, model);
  change.spare_memory = std::min(min_spare_memory(change.from, model), min_spare_memory(change.to, model));
  Feasible<WaveOrder> order = order_of_moves(change);
  if (!order) return tl::unexpected(order.error());
  change.order = std::move(*order);
  change.moved = change.order.lower_bound;
  change.minimum = assignment.needed_bytes - assignment.in_place_bound;
  return change;
}

PlanChange change_plan(const Plan& from, const Plan& to, const ModelSpec& model,
                       const AvailableRanks& available_ranks) {
  return value_or_throw(find_plan_change(from, to, model, available_ranks));
}

RankShare share_of(const PlanChange& change, int rank) {
  if (!has_device(change.from, rank) && !has_device(change.to, rank)) return {Rank{rank}, {}};
  if (rank >= std::max(num_ranks(change.old_layout), num_ranks(change.new_layout)))
    return {Rank{rank}, {}};  // the rank's blocks have no parameters
  const LayoutChange layouts(change.old_layout, change.new_layout, diff_options(change));
  DiffOutcome<RankShare> share = diff_for(layouts, change.order, Rank{rank});
  ensure(share.has_value(), "the share of rank {} could not be computed: {}", rank,
         share ? "" : share.error().why);
  const Outcome<void> verification = verify_share(change.old_layout, layouts.from_index, change.new_layout,
                                                  layouts.to_index, *share, diff_options(change));
  ensure(verification.has_value(), "the share of rank {} failed verification: {}", rank,
         verification ? "" : verification.error().why);
  return std::move(*share);
}

}  // namespace optimus
