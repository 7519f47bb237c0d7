// The environment in which policies are trained: random simulated runs (trials). Clusters, workloads, costs
// and prediction errors are drawn from wide ranges. Event generators have constants that are fitted to the
// first 60 % of published traces and to published values (environment_traces.cpp cites the sources). A trial
// is determined by its number.
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

// Properties of the user's cluster. Unspecified properties are drawn at random.
struct EnvironmentOptions {
  std::vector<AvailabilityTrace> traces{};  // every third trial with node losses replays part of one of these
  std::vector<Throughput> throughputs{};  // every trial with node losses uses one of these throughput tables
  double batch = 1;                       // samples per step in these tables
  // Mean and standard deviation of the logarithmic prediction errors. If the standard deviation is negative,
  // both are drawn at random.
  double mean_prediction_error = 0, prediction_error_spread = -1;
};

TrialCase random_trial(TrialFamily family, std::uint64_t number, const EnvironmentOptions& options = {});

// Returns `nodes`, a trial with node losses, with additional times at which a node is slow. Modes that use
// all available nodes include the slow node. Modes with fewer nodes exclude it.
TrialCase with_slow_machines(TrialCase nodes, std::uint64_t number);

// Generates a trace in which nodes join and leave. At most `nodes` nodes are available at the same time.
AvailabilityTrace random_trace(TrialFamily family, int nodes, std::uint64_t number);

// Returns the part of a trace between two times. It starts with the nodes that are available at `begin`.
AvailabilityTrace piece_of(const AvailabilityTrace& trace, double begin, double end);

}  // namespace optimus
