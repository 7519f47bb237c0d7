// Plans of several pipelines: one more, of another depth, on devices that a grid leaves idle; one for each part of a cluster
// whose devices differ, with a share of the batch by its speed; and plans that leave slow devices out.
#pragma once

#include "search/search.h"

namespace optimus {

// Worth a simulation; not yet checked for memory.
std::vector<Plan> pipelines_of_parts(const Demand& demand, const Ground& ground, Bounder& bounder,
                                     const GridResult& grid);

}  // namespace optimus
