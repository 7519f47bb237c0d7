// Demand: the input of the planner, which consists of a model, a cluster, a batch, and constraints on the
// plan. The options for constraints are declared once and used by all commands that run the planner.
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

// A range of values, including both ends, written "4" or "4..8".
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
  std::string schedule, recompute;  // if empty, any value is allowed
  std::optional<Bytes> max_memory;  // limit per device, in addition to the device's capacity
  bool offload = false;             // optimizer state may be placed in host memory
  bool no_zero3 = false;
  bool operator==(const Constraints&) const = default;
};
// Declares the options that determine the device layout: tp, pp, dp, cp, ep, zero, schedule, chunks,
// max-memory, offload, no-zero3.
void declare_layout(OptionTable& table, Constraints& constraints);
// Declares the layout options, microbatch and recompute.
void declare(OptionTable& table, Constraints& constraints);
// Throws a UsageError for words and ranges that no plan can satisfy.
void check(const Constraints& constraints);

// The quantity that the best plan minimizes: step time, cost per step, or energy per step.
enum class Goal { throughput, cost, energy };

// Known or assumed failure behavior of the devices (search/failures.h).
struct Failures {
  Seconds mtbf{0};  // mean time between failures of one device; 0 means that devices never fail
  // Interval between checkpoints. If state is lost, the work of half an interval is lost on average.
  Seconds checkpoint_every{1800};
  Seconds restart{60};  // seconds until training continues after a restart from a checkpoint
  Seconds recovery{5};  // seconds until training continues if no state is lost
};
void declare(OptionTable& table, Failures& failures);  // the option mtbf

// The planner's input. Holds references to objects that must outlive it.
struct Demand {
  const ModelSpec& model;
  const Cluster& cluster;
  const Software& software;
  const Constants& constants;
  std::int64_t batch = 1, sequence_length = 1;  // sequences per step, tokens per sequence
  Precision precision = Precision::bf16;
  Constraints constraints{};
  Goal goal = Goal::throughput;
  // Price per hour and power under load of one device. If empty, the values of the device type are used.
  std::optional<double> price{}, watts{};
  Failures failures{};
  bool shares_memory = false;    // all devices share one memory, so more devices do not add memory
  bool supports_offload = true;  // whether the runtime supports optimizer state in host memory
};

// Returns the demand with a different cluster and different constants, which must outlive the result.
Demand demand_on(const Demand& demand, const Cluster& cluster, const Constants& constants);
// The cost of one second on the first `num_devices` present devices, in the unit of the goal. This is 1 for
// throughput, a price for cost, and joules for energy.
double cost_rate(const Demand& demand, const DeviceMap& map, int num_devices);
// Throws UserError if the goal needs a price or a power that is not specified.
void check(const Demand& demand);

}  // namespace optimus
