// Finds the best plan for a demand and explains the choice.
//
//   const ClusterView cluster_view(cluster);
//   const SearchResult result = search(demand, cluster_view);
//
// Candidates (search/candidate.h) are visited in the order of their bounds (search/bound.h) and simulated
// until no remaining bound is below the best objective found. If the search completes, no candidate is better
// and the gap is zero. If the limit on simulations stops the search early, the gap is an upper bound on the
// advantage of any remaining candidate. The best candidates are then improved beyond the grid
// (search/refine.h).
//
// The functions are pure: they use neither clock nor files. If no plan meets the demand, find_plan() returns
// one sentence with the reason and the smallest change that would help (search/reason.h), and search() throws
// that sentence as a UserError. Both functions throw a UserError for an invalid demand.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "search/grid.h"

namespace optimus {

struct Alternative {
  Plan plan;
  double seconds = 0, objective = 0;
  PeakMemory peak_memory;
  std::string why;  // why it is worse than the chosen plan
};

struct ParetoPoint {
  std::string plan;
  double seconds = 0, bytes = 0;
};

struct SearchResult {
  Plan plan;
  StepPrediction step;
  PeakMemory peak_memory;
  double objective = 0;
  std::vector<Alternative> alternatives;  // best first
  // Pareto front: the chosen plan, followed by plans with less memory and longer steps.
  std::vector<ParetoPoint> front;
  std::int64_t num_candidates = 0;  // candidates that were visited
  int num_simulated = 0;
  double grid_seconds = 0;  // step time of the best candidate before refinement
  double gap = 0;
  std::map<std::string, std::int64_t> ruled_out;  // reason -> number of candidates
};

Feasible<SearchResult> find_plan(const Demand& demand, const ClusterView& cluster_view,
                                 const SearchLimits& limits = {});
SearchResult search(const Demand& demand, const ClusterView& cluster_view, const SearchLimits& limits = {});

}  // namespace optimus
