// Demand: the input of the planner: a model, a cluster, a batch, and constraints on the plan. The options
// for constraints are declared once and used by every command that plans.
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

// A range of values, both ends included; written "4" or "4..8".
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
  bool offload = false;             // optimizer state may be placed in host memory
  bool no_zero3 = false;
  bool operator==(const Constraints&) const = default;
};
// Declares the options that determine the device layout: tp, pp, dp, cp, ep, zero, schedule, chunks,
// max-memory, offload, no-zero3.
void declare_layout(OptionTable& table, Constraints& constraints);
// Declares the layout options, microbatch and recompute.
void declare(OptionTable& table, Constraints& constraints);
// Throws UsageError for words and ranges that no plan can satisfy.
void check(const Constraints& constraints);

// The quantity that the best plan minimises: step time, cost per step, or energy per step.
enum class Goal { throughput, cost, energy };

// Known or assumed failure behaviour of the devices (search/failures.h).
struct Failures {
  Seconds mtbf{0};  // mean time between failures of one device; 0: devices never fail
  // Interval between checkpoints. If state is lost, half of it is lost on average.
  Seconds checkpoint_every{1800};
  Seconds restart{60};  // seconds until training continues after a restart from a checkpoint
  Seconds recovery{5};  // seconds until training continues if the remaining devices have all state
};
void declare(OptionTable& table, Failures& failures);  // the option mtbf

// The planner's input. Holds references; the referenced objects must outlive it.
struct Demand {
  const ModelSpec& model;
  const Cluster& cluster;
  const Software& software;
  const Constants& constants;
  std::int64_t batch = 1, sequence_length = 1;  // sequences per step, tokens per sequence
  Precision precision = Precision::bf16;
  Constraints constraints{};
  Goal goal = Goal::throughput;
  // Price per hour and power under load of one device; if empty, the values of the device type.
  std::optional<double> price{}, watts{};
  Failures failures{};
  bool shares_memory = false;    // all devices share one memory, so that more devices do not add memory
  bool supports_offload = true;  // the runtime supports optimizer state in host memory
};

// The same demand for another cluster and other constants, which must outlive the result.
Demand demand_on(const Demand& demand, const Cluster& cluster, const Constants& constants);
// The cost of one second on the first `num_devices` present devices, in the unit of the goal: 1 for
// throughput, money, or energy in joules.
double cost_rate(const Demand& demand, const DeviceMap& map, int num_devices);
// Throws UserError if the goal needs a price or a power that is not specified.
void check(const Demand& demand);

}  // namespace optimus
