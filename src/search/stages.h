// Distributes layers over pipeline stages by dynamic programming. The result minimizes the objective exactly.
#pragma once

#include <vector>

namespace optimus {

inline constexpr double kInfeasible = 1e300;  // time of a stage that does not fit into memory

// times[s][n] is the number of seconds that one micro-batch takes on stage s with n layers, non-decreasing in
// n. It is kInfeasible if n layers are impossible, as for n = 0. Returns the number of layers of each stage,
// `layers` in total, that minimizes sum(t) + (microbatches - 1) * max(t) for the stage times t. This is the
// duration of a pipeline in which all stages wait for the slowest. The result is empty if no distribution is
// possible.
std::vector<int> distribute_layers(const std::vector<std::vector<double>>& times, int layers,
                                   double microbatches);

// The objective's value for a given distribution.
double pipeline_seconds(const std::vector<std::vector<double>>& times, const std::vector<int>& layers,
                        double microbatches);

}  // namespace optimus
