// Beyond the grid: from its best candidates to plans with uneven stages, layers that are computed again only as memory demands,
// other placements of stages, and several pipelines (devices that the grid leaves idle, parts of a cluster that differ). Each is
// kept only when the simulator finds it better.
#pragma once

#include "search/search.h"

namespace optimus {

struct Improved {
  Plan plan;
  double seconds = 0, objective = 0;
  Fill fill;
};

// The best plan found from these judged, which must not be empty; the best of them itself where nothing is better.
Improved refine(const Demand& demand, const Ground& ground, Bounder& bounder, const GridResult& grid);

// A fitted candidate with as little memory left free as lets its plan fit exactly; others as they are.
Candidate settled(const Demand& demand, const Ground& ground, Bounder& bounder, Candidate candidate);

// The plan of a candidate as the grid means it.
Plan grid_plan(const Demand& demand, Bounder& bounder, const Candidate& candidate);

}  // namespace optimus
