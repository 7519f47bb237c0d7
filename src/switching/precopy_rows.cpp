// Implements precopy_rows.h.
#include "switching/precopy_rows.h"

#include <algorithm>
#include <map>

namespace optimus {
namespace {

// Returns the boxes of the moments that a rank stores under the new plan, keyed by tensor.
std::map<int, std::vector<Box>> moments_at(const PlanChange& change, const StateViews& views,
                                           const RankIndex& index, int rank) {
  std::map<int, std::vector<Box>> result;
  for (const TensorBox& held : boxes_of(change.new_layout, index, Rank{rank}))
    if (views.has_moments(held.tensor)) result[held.tensor].push_back(held.box);
  return result;
}

// Returns the rows of `box` that are inside `other`; empty if `other` does not fully cover them in the
// trailing dimensions.
Box common_rows(const Box& box, const Box& other) {
  const std::optional<Box> common = intersect(box, other);
  if (!common) return {};
  for (int d = 1; d < box.num_dims; ++d)
    if ((*common)[d] != box[d]) return {};
  return *common;
}

}  // namespace

bool can_precopy(const PlanChange& change, at::Device device) {
  return device.is_cpu() && !is_asynchronous(change.from.schedule) && change.from.copy_distance == 0 &&
         change.dead.empty();
}

std::vector<PrecopyRows> precopy_rows(const PlanChange& change, const RankShare& share,
                                      std::size_t num_waves) {
  const StateViews views(change);
  const RankIndex index(change.new_layout);
  std::map<int, std::map<int, std::vector<Box>>> moments;  // keyed by receiver, then by tensor
  std::vector<PrecopyRows> result;
  for (std::size_t w = 0; w < std::min(num_waves, share.waves.size()); ++w)
    for (const RankShare::Operation& operation : share.waves[w].operations) {
      if (views.has_moments(operation.tensor)) {
        result.push_back({&operation, operation.box});
        continue;
      }
      const int receiver = operation.is_send ? operation.peer.value : share.rank.value;
      if (!moments.contains(receiver)) moments[receiver] = moments_at(change, views, index, receiver);
      for (const Box& held : moments[receiver][views.moments_of(operation.tensor)]) {
        const Box rows = common_rows(operation.box, held);
        if (rows.num_dims == 0) continue;
        result.push_back({&operation, rows});
        break;  // rows that are sent early must form one box
      }
    }
  return result;
}

Bytes saved_by_precopy(const PlanChange& change, const RankShare& share, std::size_t num_waves) {
  const StateViews views(change);
  const std::int64_t width = std::max(4, bytes_of(change.to.precision));
  std::int64_t saved = 0;
  for (const PrecopyRows& rows : precopy_rows(change, share, num_waves)) {
    if (rows.of->is_send) continue;
    const auto fields = static_cast<std::int64_t>(views.fields(rows.of->tensor).size());
    saved += width * rows.box.num_elements() * (fields - (views.has_moments(rows.of->tensor) ? 1 : 0));
  }
  return Bytes(saved);
}

}  // namespace optimus
