// The best plan for a demand, with the reasons kept.
//
//   const Ground ground(cluster);
//   const SearchResult result = search(demand, ground);
//
// Candidates (search/candidate.h) are taken in the order of their bounds (search/bound.h) and simulated exactly, until the next
// bound is not below the best time found: then nothing in that space is better, and the gap is 0. What simulations a limit
// leaves undone is told by the gap: how much better than the answer anything left could be. The best candidates are then improved
// beyond that space (search/refine.h).
//
// Pure: no clock, no files. Throws UserError for a demand that nothing meets: one sentence with the reason and the nearest
// thing that would work (search/reason.h).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "search/evaluate.h"

namespace optimus {

// A candidate that was looked at closely.
struct Judged {
  Candidate candidate;
  double seconds = 0;    // simulated; of one that does not fit its bound
  double objective = 0;  // what the goal counts
  Fill fill;
  bool is_simulated = false;
};

struct Alternative {
  Plan plan;
  double seconds = 0, objective = 0;
  Fill fill;
  std::string why;  // it loses
};

struct FrontPoint {
  std::string plan;
  double seconds = 0, bytes = 0;
};

struct SearchResult {
  Plan plan;
  StepPrediction step;
  Fill fill;
  double objective = 0;
  std::vector<Alternative> alternatives;  // best first
  std::vector<FrontPoint> front;          // less memory, more time; the plan first
  std::int64_t num_candidates = 0;        // points of the space
  int num_simulated = 0;
  double grid_seconds = 0;  // of the best candidate, before it was improved
  double gap = 0;
  std::map<std::string, std::int64_t> ruled_out;  // reason -> candidates
};

struct SearchLimits {
  int most_simulations = 300;
  int alternatives = 5;
  bool refines = true;
  bool is_uniform = false;  // every layer split in one way, one pipeline: all that other trainers run
};

SearchResult search(const Demand& demand, const Ground& ground, const SearchLimits& limits = {});

// The grid alone: simulated judged by objective, the best first; empty when nothing fits.
struct GridResult {
  std::vector<Judged> judged;     // simulated, by objective
  std::vector<Judged> unfit;      // the quickest of those that do not fit
  std::optional<Judged> nearest;  // where nothing fits: what needs least
  std::int64_t num_candidates = 0;
  int num_simulated = 0;
  double gap = 0;
  std::map<std::string, std::int64_t> ruled_out;
};
GridResult search_grid(const Demand& demand, const Ground& ground, Bounder& bounder,
                       const SearchLimits& limits);

// All candidates of the space, one by one: for tests and small spaces.
std::vector<Candidate> all_candidates(const Demand& demand, const Ground& ground);

}  // namespace optimus
