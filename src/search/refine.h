// Beyond the grid: from its best candidates to plans with uneven stages and chunks, layers that are computed again only as memory
// demands, other placements of stages, layers that differ (search/mixed.h), and several pipelines (devices that the grid leaves
// idle, parts of a cluster that differ). Each is kept only when the simulator finds it better.
#pragma once

#include "search/improve.h"

namespace optimus {

// The best plan found from these judged; the best of them itself where nothing is better. Without a pipeline where the grid has no
// plan and none was found. is_uniform: every layer in one way and one pipeline, as other trainers want it.
Improved refine(const Demand& demand, const Ground& ground, Bounder& bounder, const GridResult& grid,
                bool is_uniform);

// The plan of a candidate; of a fitted one with as little memory left free as lets it fit exactly.
struct Settled {
  Candidate candidate;
  Plan plan;
  Fill fill;
};
Settled settled(const Demand& demand, const Ground& ground, Bounder& bounder, Candidate candidate);

// The plan of a candidate as the grid means it.
Plan grid_plan(const Demand& demand, Bounder& bounder, const Candidate& candidate);

}  // namespace optimus
