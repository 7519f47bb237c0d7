// Which stage gets how many layers: dynamic programming over stages and layers, exact for its measure.
#pragma once

#include <vector>

namespace optimus {

inline constexpr double kNever = 1e300;  // a stage that does not fit

// times[s][n]: seconds of one micro-batch on stage s with n layers, never descending in n; kNever where that is impossible (as n = 0
// is). Gives the layers of each stage, `layers` in all, for which sum(t) + (microbatches - 1) * max(t) is least: how long a
// pipeline takes whose stages never wait for more than the slowest. Empty when there is no way.
std::vector<int> deal_layers(const std::vector<std::vector<double>>& times, int layers, double microbatches);

// What is minimised.
double dealt_seconds(const std::vector<std::vector<double>>& times, const std::vector<int>& layers,
                     double microbatches);

}  // namespace optimus
