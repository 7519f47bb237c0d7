// Finds the best plan for a demand and explains the choice.
//
//   const Ground cluster_view(cluster);
//   const SearchResult result = search(demand, ground);
//
// Candidates (search/candidate.h) are visited in the order of their bounds (search/bound.h) and simulated
// until the next bound is not below the best objective found. Nothing in the space is better then, and the
// gap is 0. If the limit on simulations stops the search earlier, the gap states by how much a remaining
// candidate could be better. The best candidates are then improved beyond the space (search/refine.h).
//
// Pure: no clock, no files. Throws UserError if nothing meets the demand: one sentence with the reason and
// the nearest change that would help (search/reason.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "search/evaluate.h"

namespace optimus {

// A candidate that was evaluated.
struct EvaluatedCandidate {
  Candidate candidate;
  double seconds = 0;    // simulated; a bound if the candidate does not fit
  double objective = 0;  // the value that the goal minimises
  PeakMemory peak_memory;
  bool is_simulated = false;
};

struct Alternative {
  Plan plan;
  double seconds = 0, objective = 0;
  PeakMemory peak_memory;
  std::string why;  // why it is worse
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
  std::vector<ParetoPoint> front;         // Pareto front: less memory, longer steps; the plan first
  std::int64_t num_candidates = 0;        // visited points of the search space
  int num_simulated = 0;
  double grid_seconds = 0;  // step time of the best candidate before refinement
  double gap = 0;
  std::map<std::string, std::int64_t> ruled_out;  // reason -> number of candidates
};

struct SearchLimits {
  int max_simulations = 300;
  int alternatives = 5;
  bool refines = true;
  bool is_uniform = false;  // one strategy for all layers and one pipeline, as other trainers require
};

SearchResult search(const Demand& demand, const ClusterView& cluster_view, const SearchLimits& limits = {});

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
