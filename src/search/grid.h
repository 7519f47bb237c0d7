// Searches the grid of candidates (search/candidate.h). Visits candidates in the order of their bounds and
// simulates them until no remaining bound is below the best objective found. The search is a pure function.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "search/evaluate.h"

namespace optimus {

struct SearchLimits {
  int max_simulations = 300;
  int alternatives = 5;
  bool refines = true;
  bool is_uniform = false;  // one strategy for all layers and one pipeline, as other trainers require
};

// A candidate that was evaluated.
struct EvaluatedCandidate {
  Candidate candidate;
  double seconds = 0;    // simulated seconds per step, or a lower bound if the candidate does not fit
  double objective = 0;  // the value to minimize, in the unit of the goal
  PeakMemory peak_memory;
  bool is_simulated = false;
};

// The result of the grid search alone.
struct GridResult {
  // Simulated candidates, best objective first. Empty if nothing fits.
  std::vector<EvaluatedCandidate> evaluated;
  std::vector<EvaluatedCandidate> unfit;  // the fastest candidates that do not fit
  // The candidate with the smallest excess among those that do not fit.
  std::optional<EvaluatedCandidate> nearest;
  std::int64_t num_candidates = 0;
  int num_simulated = 0;
  double gap = 0;
  std::map<std::string, std::int64_t> ruled_out;
};
GridResult search_grid(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
                       const SearchLimits& limits);

// Enumerates the whole search space. Intended for tests and small spaces.
std::vector<Candidate> all_candidates(const Demand& demand, const ClusterView& cluster_view);

}  // namespace optimus
