// Implements pending_proposal.h.
#include "adapt/pending_proposal.h"

#include <algorithm>

#include "adapt/detect.h"

namespace optimus {
namespace {

// Whether two conditions are the same and have similar severity. A different severity may require a different
// plan.
bool is_similar(const Condition& a, const Condition& b) {
  constexpr double kMaxFactorRatio = 1.4;
  const double factor_ratio = std::max(a.factor / b.factor, b.factor / a.factor);
  return a.cause == b.cause && a.location == b.location && factor_ratio <= kMaxFactorRatio;
}

}  // namespace

ProvisionalStatus provisional_status(const PendingProposal& pending, const std::vector<Condition>& detected,
                                     const std::vector<Condition>& provisional, double now) {
  // The detector needs up to ten observations, or unsteady_seconds if ratios vary. The limits allow a little
  // more.
  constexpr int kMaxObservations = 12;
  const double max_wait = DetectorOptions{}.unsteady_seconds + 2;
  const auto are_as_proposed = [&](const std::vector<Condition>& conditions) {
    return std::is_permutation(conditions.begin(), conditions.end(), pending.conditions.begin(),
                               pending.conditions.end(), is_similar);
  };
  if (!detected.empty())
    return are_as_proposed(detected) ? ProvisionalStatus::confirmed : ProvisionalStatus::rejected;
  const bool has_time = pending.num_observations <= kMaxObservations || now - pending.proposed_at < max_wait;
  return has_time && are_as_proposed(provisional) ? ProvisionalStatus::open : ProvisionalStatus::rejected;
}

}  // namespace optimus
