// The environment in which policies are trained: random trials. Clusters, workloads, costs and prediction
// errors are drawn from wide ranges. Events come from generators whose constants are fitted to the first 60 %
// of published traces and to published values (environment_traces.cpp cites the sources). The same number
// always gives the same trial.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trials/replay.h"
#include "trials/trial.h"

namespace optimus {

enum class TrialFamily {
  spot,    // nodes join and leave in bursts, minutes apart
  shrink,  // nodes are lost permanently, one at a time
  faults,  // servers fail and return hours or days later
  resize,  // a scheduler adds and removes large parts of the cluster
  slow,    // devices, hosts and links become slow for some time
  mixed,   // nodes join and leave, and some of them are slow
};
inline constexpr std::array<TrialFamily, 6> kTrialFamilies = {TrialFamily::spot,   TrialFamily::shrink,
                                                              TrialFamily::faults, TrialFamily::resize,
                                                              TrialFamily::slow,   TrialFamily::mixed};
std::string text(TrialFamily family);

// Properties of the user's own cluster; unspecified ones are drawn at random.
struct EnvironmentOptions {
  std::vector<AvailabilityTrace> traces{};  // every third node trial replays a part of one of these
  std::vector<Throughput> throughputs{};    // every node trial uses one of these throughput tables
  double batch = 1;                         // samples per step in these tables
  // Mean and standard deviation of the logarithmic prediction errors; negative deviation: drawn at random.
  double mean_prediction_error = 0, prediction_error_spread = -1;
};

TrialCase random_trial(TrialFamily family, std::uint64_t number, const EnvironmentOptions& options = {});

// A node trial in which some nodes become slow for some time. Modes that use all present nodes include the
// slow one; modes with fewer nodes exclude it.
TrialCase with_slow_machines(TrialCase nodes, std::uint64_t number);

// Generates a trace in which nodes join and leave; at most `nodes` are present at once.
AvailabilityTrace random_trace(TrialFamily family, int nodes, std::uint64_t number);

// The part of a trace between two instants. It begins with the nodes that are present at `begin`.
AvailabilityTrace piece_of(const AvailabilityTrace& trace, double begin, double end);

}  // namespace optimus
