// What is asked of the planner: a model, machines, a batch, and what the plan must or must not be. Constraints are declared once
// as options and used by every command that plans.
//
// Read next: search/search.h (the answer), search/candidate.h (the plans that are looked at).
#pragma once

#include <climits>
#include <optional>
#include <string>

#include "base/options.h"
#include "cluster/device_map.h"
#include "cost/instruction_cost.h"

namespace optimus {

// "4" or "4..8", both ends included.
struct Range {
  int least = 1, most = INT_MAX;
  bool has(int value) const { return value >= least && value <= most; }
  bool operator==(const Range&) const = default;
};
void parse(Range& target, std::string_view text, std::string_view what);
std::string text(const Range& range);
inline Json show(const Range& range) { return text(range); }

struct Constraints {
  std::optional<Range> tp, pp, dp, cp, ep, zero, chunks, microbatch;
  std::string schedule, recompute;  // empty: any
  std::optional<Bytes> max_memory;  // of a device; no more than it has
  bool offload = false;             // optimizer state may lie in host memory
  bool no_zero3 = false;
  bool operator==(const Constraints&) const = default;
};
// Where devices are concerned: tp, pp, dp, cp, ep, zero, schedule, chunks, max-memory, offload, no-zero3.
void declare_layout(OptionTable& table, Constraints& constraints);
// And what else a plan chooses: microbatch, recompute.
void declare(OptionTable& table, Constraints& constraints);
// Throws UsageError for words and numbers that no plan can have.
void check(const Constraints& constraints);

// What the best plan has least of: seconds of a step, money for it, or energy.
enum class Goal { throughput, cost, energy };

// What is known or assumed about devices that fail (search/failures.h).
struct Failures {
  Seconds mtbf{0};                 // mean time between failures of one device; 0: they never fail
  Seconds checkpoint_every{1800};  // what is lost where no copy is left: half of that, on average
  Seconds restart{60};             // and this, until steps go on
  Seconds recovery{5};             // until steps go on where the others have everything
};
void declare(OptionTable& table, Failures& failures);  // mtbf

// Refers to values that must outlive it.
struct Demand {
  const ModelSpec& model;
  const Cluster& cluster;
  const Software& software;
  const Constants& constants;
  std::int64_t batch = 1, sequence_length = 1;  // sequences a step, tokens of each
  Precision precision = Precision::bf16;
  Constraints constraints{};
  Goal goal = Goal::throughput;
  std::optional<double> price{}, watts{};  // of a device: an hour; while it computes. None: those of its type
  Failures failures{};
  bool shares_memory = false;  // devices are parts of one memory: more of them have no more
  bool has_offload = true;     // whoever runs the plan can have state in host memory
};

// The same of other machines, and by other constants. Both must outlive it.
Demand demand_on(const Demand& demand, const Cluster& cluster, const Constants& constants);
// What a second of the first `num_devices` present devices costs in the goal's unit: 1, money, or watts.
double rate_of(const Demand& demand, const DeviceMap& map, int num_devices);
// Throws UserError when the goal needs a price or watts that nobody has stated.
void check(const Demand& demand);

}  // namespace optimus
