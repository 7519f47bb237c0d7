// ReplayCase and ReplayOutcome: the input of a replay (trials/replay.h) and what came of it. Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "recovery/recovery_costs.h"
#include "simulate/availability.h"

namespace optimus {

// Samples per second by number of nodes. Numbers outside the known range are clamped to it;
// ReconfigurationCosts::min_nodes defines the smallest number with which training runs.
struct Throughput {
  int min_nodes = 1;
  std::vector<double> samples_per_second;  // [nodes - fewest]; 0: does not fit
  int max_nodes() const { return min_nodes + static_cast<int>(samples_per_second.size()) - 1; }
  double at(int nodes) const;
};

// Costs of plan changes in the published systems.
struct ReconfigurationCosts {
  double reconfigure_seconds = 0;
  // [nodes of the previous plan - Throughput::fewest]; empty: reconfigure_seconds
  std::vector<double> reconfigure_by_nodes;
  double checkpoint_seconds = 0;      // 0: no checkpoints
  int checkpoint_every = 10;          // steps
  int min_nodes = 12;                 // needed to run
  int stages = 12;                    // per pipeline of Bamboo
  double fatal_restart_seconds = 30;  // restart of Bamboo when state is lost
};

enum class StepCounting { as_published, completed_only };

struct ReplayCase {
  const AvailabilityTrace& trace;
  Throughput throughput;
  double batch = 1;                        // samples per step
  double ready_seconds = 45;               // from the arrival of a node until it is usable
  ReconfigurationCosts reconfiguration{};  // of oobleck, varuna, bamboo
  RecoveryCosts costs{};                   // of ours
  StepCounting counting = StepCounting::completed_only;
  double ticks_per_second = 1000;  // times and steps are rounded to whole ticks

  std::int64_t ticks(double seconds) const;
  std::int64_t step_ticks(int nodes) const;  // of a step on this many nodes; 0 if the model does not fit
};

struct ReplayOutcome {
  std::int64_t steps = 0;  // completed and not lost later
  // From the first start to the end of the last step, as the published simulators count.
  double samples_per_second = 0;
  double goodput = 0;            // samples per second over the whole trace
  double useful_seconds = 0;     // total duration of the counted steps
  double fraction_of_ideal = 0;  // relative to ideal_of
  double seconds_lost = 0;       // time with enough nodes but without a counted step
  int starts = 0;                // how often training started or changed its plan
  int steps_lost = 0;            // steps started or completed in vain
};

}  // namespace optimus
