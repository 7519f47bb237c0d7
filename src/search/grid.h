// The search of the grid: the candidates (search/candidate.h) in the order of their bounds, simulated until
// the next bound is not below the best objective found. Pure.
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
  double seconds = 0;    // simulated; a bound if the candidate does not fit
  double objective = 0;  // the value that the goal minimises
  PeakMemory peak_memory;
  bool is_simulated = false;
};

// The result of the grid search alone.
struct GridResult {
  std::vector<EvaluatedCandidate>
      evaluated;                          // simulated candidates, best objective first; empty if nothing fits
  std::vector<EvaluatedCandidate> unfit;  // the fastest candidates that do not fit
  std::optional<EvaluatedCandidate> nearest;  // the candidate with the smallest memory excess
  std::int64_t num_candidates = 0;
  int num_simulated = 0;
  double gap = 0;
  std::map<std::string, std::int64_t> ruled_out;
};
GridResult search_grid(const Demand& demand, const ClusterView& cluster_view, BoundModel& bound_model,
                       const SearchLimits& limits);

// Enumerates the search space; for tests and small spaces.
std::vector<Candidate> all_candidates(const Demand& demand, const ClusterView& cluster_view);

}  // namespace optimus
