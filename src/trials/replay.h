// Replays: what trainings with different answers to lost and returning nodes get done on one trace of them.
//
//   replay(System::oobleck, one)   templates: a short halt at every loss; who comes waits for the next loss
//   replay(System::varuna, one)    checkpoints, a restart at every loss
//   replay(System::bamboo, one)    neighbours compute each other's layers: losses slow it down, restarts are few
//   replay(System::ours, one)      templates, losses found at once, who comes enters between two steps
//
// All are told the same: how quickly training goes on how many nodes, how long their own changes take. The first three follow their
// authors' published simulators; Counting says whether with the accidents of that code or without (docs/resilience.md has the list).
// Pure; times are whole ticks inside, milliseconds where nobody says otherwise, as in those simulators.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "recovery/recovery_costs.h"
#include "simulate/availability.h"

namespace optimus {

// Samples a second by the number of nodes. Fewer nodes than the fewest known count as those, more as the most: what a training of
// fewer nodes than it needs gets is told by Halts::fewest_nodes.
struct Throughput {
  int fewest = 1;
  std::vector<double> samples_per_second;  // [nodes - fewest]; 0: does not fit
  int most() const { return fewest + static_cast<int>(samples_per_second.size()) - 1; }
  double at(int nodes) const;
};

// What changes cost the published systems.
struct Halts {
  double reconfigure_seconds = 0;
  std::vector<double>
      reconfigure_by_nodes;       // [nodes - Throughput::fewest] of the plan before; empty: as above
  double checkpoint_seconds = 0;  // 0: none
  int checkpoint_every = 10;      // steps
  int fewest_nodes = 12;          // to start with
  int stages = 12;                // of Bamboo's pipelines
  double fatal_seconds = 30;      // a start of Bamboo's with nothing to go on from
};

enum class Counting { as_published, really_done };

struct ReplayCase {
  const AvailabilityTrace& trace;
  Throughput throughput;
  double batch = 1;           // samples of a step
  double ready_seconds = 45;  // from a node's coming to its being of use
  Halts halts{};              // of oobleck, varuna, bamboo
  RecoveryCosts costs{};      // of ours
  Counting counting = Counting::really_done;
  double ticks_per_second = 1000;  // steps and times are cut to whole ones

  std::int64_t ticks(double seconds) const;
  std::int64_t step_ticks(int nodes) const;  // of a step on so many nodes; 0 where the model does not fit
};

struct ReplayOutcome {
  std::int64_t steps = 0;  // done, and not lost again
  double samples_per_second =
      0;  // in them, from the first start to the end of the last step: as the published simulators count
  double goodput = 0;            // samples a second in them, over the whole trace
  double useful_seconds = 0;     // the sum of their lengths
  double fraction_of_ideal = 0;  // of what ideal_of gets done
  double seconds_lost = 0;       // with nodes enough and no step that counts
  int starts = 0;                // how often training began or changed its plan
  int steps_lost = 0;            // begun or done in vain
};

enum class System { oobleck, varuna, bamboo, ours };
std::string text(System system);
std::vector<std::string> system_words();
System parse_system(std::string_view word, const std::string& what);  // throws UserError

ReplayOutcome replay(System system, const ReplayCase& one);

// The mean of some replays: of the trace, and of copies of it whose instants are moved by up to a step. Which part of a step a loss meets
// is chance, and the step in flight is most of what a loss costs; with a dozen losses one replay is largely luck.
ReplayOutcome mean_replay(System system, const ReplayCase& one, int repeats);

// A training that always goes as quickly as the nodes that are ready let it, and loses nothing.
struct Ideal {
  double samples = 0, seconds = 0;  // seconds: with nodes enough
};
Ideal ideal_of(const ReplayCase& one);

// `nodes` nodes of which one is lost every `every` seconds, in turn, and is back `away` seconds later.
AvailabilityTrace periodic_failures(int nodes, double every, double away, double length);

}  // namespace optimus
