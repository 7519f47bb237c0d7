// ReplayCase and ReplayOutcome: the input and the result of a replay (trials/replay.h). Plain data.
#pragma once

#include <cstdint>
#include <vector>

#include "recovery/recovery_costs.h"
#include "simulate/availability.h"

namespace optimus {

// Samples per second by number of nodes. Numbers outside the known range are clamped to it. See
// ReconfigurationCosts::min_nodes for the smallest number of nodes that can train.
struct Throughput {
  int min_nodes = 1;
  std::vector<double> samples_per_second;  // [nodes - min_nodes]; 0: the model does not fit
  int max_nodes() const { return min_nodes + static_cast<int>(samples_per_second.size()) - 1; }
  double at(int nodes) const;
};

// Published costs of plan changes in Oobleck, Varuna and Bamboo.
struct ReconfigurationCosts {
  double reconfigure_seconds = 0;
  // [nodes of the previous plan - Throughput::min_nodes]; if empty, reconfigure_seconds is always used.
  std::vector<double> reconfigure_by_nodes;
  double checkpoint_seconds = 0;      // 0: no checkpoints
  int checkpoint_every = 10;          // number of steps between checkpoints
  int min_nodes = 12;                 // number of nodes needed to run
  int stages = 12;                    // number of stages in a pipeline of Bamboo
  double fatal_restart_seconds = 30;  // Bamboo: pause for a restart when state is lost
};

enum class StepCounting { as_published, completed_only };

struct ReplayCase {
  const AvailabilityTrace& trace;
  Throughput throughput;
  double batch = 1;                        // samples per step
  double ready_seconds = 45;               // from the time when a node joins until it is usable
  ReconfigurationCosts reconfiguration{};  // for oobleck, varuna, bamboo
  RecoveryCosts costs{};                   // for ours
  StepCounting counting = StepCounting::completed_only;
  double ticks_per_second = 1000;  // times and step lengths are rounded to whole ticks

  std::int64_t ticks(double seconds) const;
  // The length of a step on this number of nodes, or 0 if the model does not fit.
  std::int64_t step_ticks(int nodes) const;
};

struct ReplayOutcome {
  std::int64_t steps = 0;  // completed steps that were not lost later
  // Measured from the first start to the end of the last step, as in the published simulators.
  double samples_per_second = 0;
  double goodput = 0;            // samples per second over the whole trace
  double useful_seconds = 0;     // total duration of the counted steps
  double fraction_of_ideal = 0;  // samples relative to ideal_of()
  double seconds_lost = 0;       // time with enough nodes but without a counted step
  int starts = 0;                // number of times that training started or changed its plan
  int steps_lost = 0;            // steps that were interrupted, or completed and then lost
};

}  // namespace optimus
