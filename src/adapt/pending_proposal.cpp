// Implements pending_proposal.h.
#include "adapt/pending_proposal.h"

#include <algorithm>

#include "adapt/detect.h"

namespace optimus {
namespace {

// Whether two conditions have similar severity; another severity may require another plan.
bool is_nearly(const Condition& a, const Condition& b) {
  constexpr double kNear = 1.4;
  const double apart = std::max(a.factor / b.factor, b.factor / a.factor);
  return a.cause == b.cause && a.location == b.location && apart <= kNear;
}

}  // namespace

ProvisionalStatus provisional_status(const PendingProposal& pending, const std::vector<Condition>& found,
                                     const std::vector<Condition>& provisional, double now) {
  // The detector needs up to ten observations, or unsteady_seconds where ratios vary. A little more time is
  // allowed.
  constexpr int kMostObservations = 12;
  const double longest = DetectorOptions{}.unsteady_seconds + 2;
  const auto are_as_proposed = [&](const std::vector<Condition>& conditions) {
    return std::is_permutation(conditions.begin(), conditions.end(), pending.conditions.begin(),
                               pending.conditions.end(), is_nearly);
  };
  if (!found.empty())
    return are_as_proposed(found) ? ProvisionalStatus::confirmed : ProvisionalStatus::rejected;
  const bool has_time = pending.num_observations <= kMostObservations || now - pending.proposed_at < longest;
  return has_time && are_as_proposed(provisional) ? ProvisionalStatus::open : ProvisionalStatus::rejected;
}

}  // namespace optimus
