// Demand: the input of the planner: a model, a cluster, a batch, and constraints on the plan. Constraints are
// declared once as options and used by every command that plans.
//
// Read next: search/search.h (the result), search/candidate.h (the search space).
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
  int min = 1, max = INT_MAX;
  bool contains(int value) const { return value >= min && value <= max; }
  bool operator==(const Range&) const = default;
};
void parse(Range& target, std::string_view text, std::string_view setting_name);
std::string text(const Range& range);
inline Json show(const Range& range) { return text(range); }

struct Constraints {
  std::optional<Range> tp, pp, dp, cp, ep, zero, chunks, microbatch;
  std::string schedule, recompute;  // empty: any value
  std::optional<Bytes> max_memory;  // per device; capped at the device's capacity
  bool offload = false;             // optimizer state may lie in host memory
  bool no_zero3 = false;
  bool operator==(const Constraints&) const = default;
};
// Declares the options that concern the device layout: tp, pp, dp, cp, ep, zero, schedule, chunks,
// max-memory, offload, no-zero3.
void declare_layout(OptionTable& table, Constraints& constraints);
// Declares these and the other plan options: microbatch, recompute.
void declare(OptionTable& table, Constraints& constraints);
// Throws UsageError for words and numbers that no plan can have.
void check(const Constraints& constraints);

// The quantity that the best plan minimises: step time, cost per step, or energy per step.
enum class Goal { throughput, cost, energy };

// Known or assumed failure behaviour of the devices (search/failures.h).
struct Failures {
  Seconds mtbf{0};  // mean time between failures of one device; 0: devices never fail
  // interval of checkpoints; without a copy of the state, half of it is lost on average
  Seconds checkpoint_every{1800};
  Seconds restart{60};  // time until training continues from a checkpoint
  Seconds recovery{5};  // time until training continues if the remaining devices have all state
};
void declare(OptionTable& table, Failures& failures);  // mtbf

// Holds references; the referenced values must outlive it.
struct Demand {
  const ModelSpec& model;
  const Cluster& cluster;
  const Software& software;
  const Constants& constants;
  std::int64_t batch = 1, sequence_length = 1;  // sequences per step, tokens per sequence
  Precision precision = Precision::bf16;
  Constraints constraints{};
  Goal goal = Goal::throughput;
  // per device: price per hour, power under load; unset: the values of its type
  std::optional<double> price{}, watts{};
  Failures failures{};
  bool shares_memory = false;    // the devices share one memory: more devices do not add memory
  bool supports_offload = true;  // the runtime supports optimizer state in host memory
};

// The same demand for another cluster and other constants. Both must outlive the result.
Demand demand_on(const Demand& demand, const Cluster& cluster, const Constants& constants);
// What one second of the first `num_devices` present devices costs in the unit of the goal: 1, money, or
// energy.
double cost_rate(const Demand& demand, const DeviceMap& map, int num_devices);
// Throws UserError if the goal needs a price or a power that is not specified.
void check(const Demand& demand);

}  // namespace optimus
