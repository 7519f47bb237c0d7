// StayReports: a queue of decisions to keep the plan, which the run then records. Each decision is reported
// once per plan. One thread at a time.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "adapt/plan_proposal.h"
#include "policy/condition.h"

namespace optimus {

class StayReports {
 public:
  void add(StayDecision stay_decision) { queue_.push_back(std::move(stay_decision)); }
  // Adds the report unless one with this key was already added on this plan.
  void add_once(const std::string& key, StayDecision stay_decision);
  // Adds the report only if the conditions are severe, and only once for the same conditions and reason.
  void add_for(const std::vector<Condition>& conditions, StayDecision stay_decision);
  // Removes and returns the oldest report, or returns nullopt if there are no reports.
  std::optional<StayDecision> take();
  // Called when the plan has changed.
  void reset() { queue_.clear(), reported_.clear(); }

 private:
  std::deque<StayDecision> queue_;
  std::set<std::string> reported_;
};

}  // namespace optimus
