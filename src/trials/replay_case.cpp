// See replay_case.h.
#include "trials/replay_case.h"

#include <algorithm>
#include <cmath>

namespace optimus {

double Throughput::at(int nodes) const {
  if (samples_per_second.empty()) return 0;
  return samples_per_second[static_cast<std::size_t>(std::clamp(nodes, min_nodes, max_nodes()) - min_nodes)];
}

std::int64_t ReplayCase::ticks(double seconds) const { return std::llround(seconds * ticks_per_second); }

std::int64_t ReplayCase::step_ticks(int nodes) const {
  const double speed = throughput.at(nodes);
  if (!(speed > 0)) return 0;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(ticks_per_second * batch / speed));
}

}  // namespace optimus
