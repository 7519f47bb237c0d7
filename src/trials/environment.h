// The environment in which policies are trained: random trials. Clusters, workloads, costs and errors of predictions are drawn from wide
// ranges; what happens to the machines comes from generators whose constants were fitted to the first 60 % of published traces and to
// published figures (environment_traces.cpp names each source). The same number gives the same trial, always.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "trials/replay.h"
#include "trials/trial.h"

namespace optimus {

enum class TrialFamily {
  spot,    // nodes come and go in bursts, minutes apart
  shrink,  // nodes are lost one by one for good
  faults,  // servers fail and come back hours or days later
  resize,  // a scheduler gives and takes large parts
  slow,    // devices, hosts and links become slow for a while
  mixed,   // both: nodes come and go, and some of them are slow
};
inline constexpr std::array<TrialFamily, 6> kTrialFamilies = {TrialFamily::spot,   TrialFamily::shrink,
                                                              TrialFamily::faults, TrialFamily::resize,
                                                              TrialFamily::slow,   TrialFamily::mixed};
std::string text(TrialFamily family);

// What an owner knows of the own cluster; what is not given is drawn.
struct EnvironmentOptions {
  std::vector<AvailabilityTrace> traces{};  // every third trial of nodes replays a piece of one of these
  std::vector<Throughput> throughputs{};    // and goes as quickly as one of these
  double batch = 1;                         // samples of a step of theirs
  double mean_miss = 0, miss_spread = -1;   // of predictions, logarithms; spread below 0: drawn
};

TrialCase random_trial(TrialFamily family, std::uint64_t number, const EnvironmentOptions& options = {});

// A trial of nodes, some of which become slow for a while: whoever uses all that are there has the slow one among them, whoever does with
// fewer leaves it out.
TrialCase with_slow_machines(TrialCase nodes, std::uint64_t number);

// The generators themselves: nodes that come and go, at most `nodes` at once.
AvailabilityTrace random_trace(TrialFamily family, int nodes, std::uint64_t number);

// The part of a trace between two instants, which begins with whoever is there then.
AvailabilityTrace piece_of(const AvailabilityTrace& trace, double begin, double end);

}  // namespace optimus
